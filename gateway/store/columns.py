"""Columns and checks that the tables of this package have in common."""

from __future__ import annotations

import sqlalchemy as sa


def one_of(column: str, names: tuple[str, ...]) -> sa.CheckConstraint:
    quoted = ", ".join(f"'{name}'" for name in names)
    return sa.CheckConstraint(f"{column} IN ({quoted})", name=f"{column}_known")


def text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False, server_default="")


def count(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False, server_default="0")


def flag(name: str) -> sa.Column[bool]:
    return sa.Column(name, sa.Boolean, nullable=False, server_default=sa.false())
