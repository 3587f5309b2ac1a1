"""Faults to order from the stand-in for B2, in the grammar of retake.sandbox.orders: KIND[#CALLS]=FAULT.

b2-upload#2=cut-after     the second upload is stored, but the answer is lost, so b2sdk uploads again
b2-upload#1=new-url       503 that asks for a new upload URL, which B2 answers when one of its servers is busy
b2-list=503               an outage: every listing fails until the order is withdrawn
b2-list#3=expired         the token has expired
b2-upload=caps            403: the account's cap is used up
b2-download#1=slow=2.5    takes 2.5 s longer
"""

from retake.sandbox.orders import OrderGrammar

KINDS = {
    "b2_authorize_account": "b2-authorize",
    "b2_cancel_large_file": "b2-cancel-large",
    "b2_copy_file": "b2-copy",
    "b2_create_bucket": "b2-buckets",
    "b2_delete_file_version": "b2-delete",
    "b2_download_file_by_id": "b2-download",
    "b2_download_file_by_name": "b2-download",
    "b2_finish_large_file": "b2-finish-large",
    "b2_get_file_info": "b2-info",
    "b2_get_upload_part_url": "b2-part-url",
    "b2_get_upload_url": "b2-upload-url",
    "b2_hide_file": "b2-hide",
    "b2_list_buckets": "b2-buckets",
    "b2_list_file_names": "b2-list",
    "b2_list_file_versions": "b2-list",
    "b2_list_unfinished_large_files": "b2-unfinished",
    "b2_start_large_file": "b2-start-large",
    "b2_update_bucket": "b2-buckets",
    "b2_upload_file": "b2-upload",
    "b2_upload_part": "b2-part",
    "s3_put_object": "b2-s3",
}
"""The kind of each call that the stand-in implements, by the API's name."""

FAULTS = {
    "new-url": "nothing is done; 503 with the code that asks for a new upload URL",
    "expired": "nothing is done; the token has expired",
    "caps": "nothing is done; a cap of the account is used up",
}
SHARED = ("cut-before", "cut-after", "hang", "hang-after", "not-json")
"""Faults with the same meaning as in retake.sandbox.orders, besides HTTP statuses and slow=SECONDS."""


parse_order = OrderGrammar("B2", tuple(sorted({*KINDS.values()})), FAULTS, SHARED).parse
"""Parses KIND[#CALLS]=FAULT. Raises ValueError, which says what is wrong and what is possible."""
