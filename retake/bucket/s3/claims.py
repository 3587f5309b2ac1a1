"""Claims in an S3-compatible store."""

from typing import Any

from retake.bucket.claims.store import Claims, FarClaims, Stamped
from retake.bucket.s3.client import AnswerLost, RequestRefused, S3Client, S3Place, date_of
from retake.bucket.s3.conditions import conditions
from retake.bucket.s3.removal import remove


class S3ClaimStore(FarClaims):
    """A `ClaimStore` in `place`. `client` should have short timeouts and little patience: a lease does not wait."""

    def __init__(self, client: S3Client, place: S3Place) -> None:
        self._client = client
        self._place = place

    @property
    def conditional(self) -> bool:
        return conditions(self._client, self._place).absent

    def claims(self, prefix: str) -> Claims:
        found: list[Stamped] = []
        date: float | None = None
        more: dict[str, str] = {}
        while True:
            answer = self._list(prefix, more)
            date = date if found else date_of(answer)  # of the first page: later ones are younger
            found += [Stamped(self._name(it["Key"]), it["LastModified"].timestamp()) for it in answer["Contents"]]
            if not answer.get("IsTruncated"):
                return Claims(tuple(found), date)
            more = {"ContinuationToken": answer["NextContinuationToken"]}

    def _list(self, prefix: str, more: dict[str, str]) -> dict[str, Any]:
        answer = self._client.must("list the claims", "list_objects_v2", Prefix=self._key(prefix), **more)
        return {"Contents": [], **answer}

    def claim(self, name: str) -> float:
        try:
            answer = self._client.once("put_object", Key=self._key(name), Body=b"")
        except (RequestRefused, AnswerLost) as error:
            raise self._client.failed(f"store the claim {name}", error) from error
        date = date_of(answer)
        if date is None:
            raise self._client.failed(f"store the claim {name}", ValueError("the answer has no Date"))
        return date

    def claim_if_absent(self, name: str, nonce: str) -> bool:
        try:
            self._client.once("put_object", Key=self._key(name), Body=nonce.encode(), IfNoneMatch="*")
        except (RequestRefused, AnswerLost) as error:
            if isinstance(error, RequestRefused) and error.status not in (409, 412):
                raise self._client.failed(f"store the claim {name}", error) from error
            found = self.nonce(name)
            if found is None and isinstance(error, RequestRefused) and error.status == 412:
                return False  # somebody had it and has released it since
            if found is None:  # refused because of others, or never arrived: nobody has it, and we withdraw
                raise self._client.failed(f"store the claim {name}", error) from error
            return found == nonce
        return True

    def nonce(self, name: str) -> str | None:
        try:
            body: bytes = self._client.ask(f"read the claim {name}", "get_object", Key=self._key(name))["Body"]
        except RequestRefused as error:
            if error.status == 404:
                return None
            raise self._client.failed(f"read the claim {name}", error) from error
        return body.decode("utf-8", "replace")

    def withdraw(self, name: str) -> None:
        remove(self._client, self._key(name), f"remove the claim {name}")

    def _key(self, name: str) -> str:
        return f"{self._place.prefix}.retake/{name}"

    def _name(self, key: str) -> str:
        return key.removeprefix(f"{self._place.prefix}.retake/")
