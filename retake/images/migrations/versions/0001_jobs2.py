"""The table jobs2 and the idempotency keys of its jobs: docs/images.md, section "State".

Released migrations are not changed: every change of the tables is a new migration.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "jobs2",
        sa.Column("id", sa.Uuid, primary_key=True),
        sa.Column("user_id", sa.Text, nullable=False),
        sa.Column("prompt", sa.Text, nullable=False),
        sa.Column("parameters", JSONB, nullable=False, server_default=sa.text("'{}'::jsonb")),
        sa.Column("status", sa.Text, nullable=False, server_default=sa.text("'pending'")),
        sa.Column("error", sa.Text),
        sa.Column("output_r2_key", sa.Text),
        sa.Column("executed_by_comfyui_server", sa.Text),
        moment("created_at"),
        moment("updated_at"),
        sa.CheckConstraint("status IN ('pending', 'ready', 'completed', 'failed')", name="ck_jobs2_status"),
    )
    op.create_index("ix_jobs2_open", "jobs2", ["id"], postgresql_where=sa.text("status IN ('pending', 'ready')"))
    op.create_table(
        "jobs2_keys",
        sa.Column("user_id", sa.Text, primary_key=True),
        sa.Column("key_hash", sa.Text, primary_key=True),
        sa.Column("job_id", sa.Uuid, nullable=False),
        moment("created_at"),
    )
    op.create_index("ix_jobs2_keys_created", "jobs2_keys", ["created_at"])


def downgrade() -> None:
    op.drop_table("jobs2_keys")
    op.drop_table("jobs2")


def moment(name: str) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=False, server_default=sa.text("now()"))
