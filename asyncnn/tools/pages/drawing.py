"""Draws a page as one HTML file."""

from html import escape

from asyncnn.tools.pages.document import Page


def draw(page: Page) -> str:
    """Return the HTML text of a page."""
    return f"<!DOCTYPE html><title>{escape(page.title)}</title>"
