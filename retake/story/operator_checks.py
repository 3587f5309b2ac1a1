"""The doctor's checks for the story: prompts, ffmpeg, documents, and its vendors.

Each vendor gets a free request from the client that the steps use.
"""

import json
from collections.abc import Iterator

from retake.bucket import NotFound
from retake.errors import RetakeError, SettingsError
from retake.keys import Keys
from retake.operations.finding import Finding, fault, named, of_error, ok, warn
from retake.operations.vendor_checks import VendorClient, patient
from retake.plural import count
from retake.settings.schema import PictureSize
from retake.story.clients import LocalMedia, RealVendors
from retake.story.content import KEYS, checked, load_prompts, prompts_file, unknown_prompt_keys, unknown_references
from retake.story.documents import Documents
from retake.story.settings import Settings
from retake.story.store import DocumentStore


def prompts_check(settings: Settings) -> Finding:
    path = prompts_file(settings)
    try:
        prompts = load_prompts(path)
    except SettingsError as error:
        return of_error("prompts", error, "fix the file, or name another in FILE_PATHS.prompts")
    if unknown := [*unknown_references(prompts), *unknown_prompt_keys(path)]:
        do = "correct the names; such a $name is sent to the writer as it is, and such a key is ignored"
        return warn("prompts", f"{path}: {'; '.join(unknown)}", do)
    return ok("prompts", f"{path}: {count(len(prompts), 'call')} to the writer")


def ffmpeg_check(settings: Settings) -> Finding:
    """Make and read a small mock video with the encoder that the settings name."""
    small = settings._replace(
        image=settings.image._replace(output_size=PictureSize(64, 64)),
        video=settings.video._replace(mock_duration=0.2, mock_fps=10),
    )
    try:
        media = LocalMedia(small)
        doubtful = media.check_video(media.mock_video(media.placeholder("doctor")))
    except RetakeError as error:
        return of_error("ffmpeg", error, "without it no mock is made and no video is checked")
    if doubtful:
        return warn("ffmpeg", doubtful, "look at VIDEO.mock_codec")
    return ok("ffmpeg", f"made and read a video with {settings.video.mock_codec}")


def document_checks(store: DocumentStore, channel: str | None) -> Iterator[Finding]:
    """Check that the documents are valid and the text of the generation under way is whole."""
    check = named("documents", channel)
    try:
        documents = store.read()
    except RetakeError as error:
        yield of_error(check, error)
        return
    last = documents.midjourney.error
    what = documents.gen.generation_id or "no generation"
    if documents.gen.generation_id and last.critical:
        yield fault(check, f"{what}: {last.message}", last.advice)
    else:
        yield ok(check, f"all readable; {what} is under way")
    if "json" in documents.files:
        yield _input(store, documents, channel)


def _input(store: DocumentStore, documents: Documents, channel: str | None) -> Finding:
    """Check that 666/ID.json has what later steps need."""
    check = named("input", channel)
    key = store.file_key(documents.gen.generation_id or "", "json")
    do = "fix the file, or take the generation up from its text again"
    try:
        value = json.loads(store.bucket.read(key)[0])
        checked(value if isinstance(value, dict) else {}, KEYS)
    except NotFound:
        return ok(check, f"{key} has just been moved")
    except (ValueError, RecursionError) as error:
        return fault(check, f"{key}: not JSON ({error})", do)
    except RetakeError as error:
        return fault(check, f"{key}: {error}".replace("the writer's answer", "it"), do)
    return ok(check, f"{key} has all that the pictures and the video need")


def clients_of(settings: Settings, keys: Keys) -> list[VendorClient]:
    """Return the vendors whose keys are set: another check reports the missing ones."""
    vendors = RealVendors(settings._replace(workflow=patient(settings.workflow)), keys)
    found = [
        (keys.midjourney, VendorClient(f"pictures ({settings.midjourney.provider})", vendors.midjourney)),
        (keys.runway, VendorClient("videos (runway)", vendors.video_generator)),
        (keys.openai, VendorClient("texts (chat API)", vendors.writer)),
    ]
    return [client for key, client in found if key]
