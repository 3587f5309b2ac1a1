"""A model of a bucket on a dict, with which the suite compares random histories."""

from retake.bucket import ABSENT, ANY, Bucket, Conflict, NotFound
from retake.bucket.moves import move


class Model:
    """A model of a bucket on a dict. "read" stands for the present version, "stale" for another."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def expected(self, operation: str, key: str, *rest: bytes | str) -> object:
        if operation == "find":
            names = [f"{key}{ending!s}" for ending in rest[0]]
            return sorted((name, len(self.objects[name])) for name in names if name in self.objects)
        if operation == "list":
            return sorted((name, len(data)) for name, data in self.objects.items() if name.startswith(key))
        if operation == "delete":
            self.objects.pop(key, None)
            return None
        if operation == "copy":
            if key not in self.objects:
                return NotFound
            self.objects[str(rest[0])] = self.objects[key]
            return None
        if operation == "move":
            if key == rest[0]:
                return ValueError
            if key not in self.objects:
                return NotFound
            self.objects[str(rest[0])] = self.objects.pop(key)
            return None
        data, expect = rest
        if not {"any": True, "absent": key not in self.objects, "read": key in self.objects, "stale": False}[
            str(expect)
        ]:
            return Conflict
        assert isinstance(data, bytes)
        self.objects[key] = data
        return None

    def outcome(self, bucket: Bucket, operation: str, key: str, *rest: bytes | str) -> object:
        try:
            if operation == "list":
                return [(entry.key, entry.size) for entry in bucket.list(key)]
            if operation == "find":
                return [(entry.key, entry.size) for entry in bucket.find(key, map(str, rest[0]))]
            if operation in ("delete", "copy"):
                return getattr(bucket, operation)(key, *rest)
            if operation == "move":
                return move(bucket, [(key, str(rest[0]))])
            data, expect = rest
            wanted = self.expectation(bucket, key, str(expect))
            bucket.write(key, data, wanted) if operation == "write" else bucket.replace(key, data, wanted, "aside")
        except (NotFound, Conflict, ValueError) as error:
            return type(error)
        return None

    def expectation(self, bucket: Bucket, key: str, expect: str) -> object:
        if expect == "read":
            try:
                return bucket.read(key)[1]
            except NotFound:
                expect = "stale"
        return {"any": ANY, "absent": ABSENT, "stale": "0-0-0"}[expect]
