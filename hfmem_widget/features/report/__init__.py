"""A session as one page for a browser: it needs no server, no kernel and no network.

`sections` writes the contents, with the kit of cards and tables; `page` puts that into a document, and the
live chart with the frame that it draws.
"""
