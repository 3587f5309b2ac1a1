"""The tables of the music pipelines: docs/music.md, section "Tables".

Released migrations are not changed: every change of the tables is a new migration.
"""

from alembic import op

from retake.music.tables import metadata

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    metadata.create_all(op.get_bind())
