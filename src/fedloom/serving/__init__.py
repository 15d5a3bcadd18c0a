"""A client's model outside its run: predictions, export, and an HTTP service.

`model` (what one client ends up with), `card` (what is to be known of it), `preprocessing` (from
raw rows to a network's input), `draws` (random layers made repeatable), `answers` (predictions with
the names of classes), `row_files` (rows of a user's files), `graph` (the whole prediction as one
module), `export` (into files that need no fedloom), `plain_module` (as plain torch source), `app`
(over HTTP).
"""
