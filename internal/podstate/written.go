package podstate

import "strings"

// parseWritten reads a hash annotation in exactly the form in which we (and the
// reference) write it, which is nearly every one there is, at a fraction of the
// cost of reading any JSON. It returns false for all others.
func parseWritten(value string) (Hashes, bool) {
	var h Hashes
	c := cursor{rest: value}
	c.literal("{")
	for !c.failed && !c.at("}") {
		if len(h.entries) > 0 {
			c.literal(",")
		}
		e := c.entry()
		if n := len(h.entries); n > 0 && h.entries[n-1].name >= e.name {
			return Hashes{}, false
		}
		if len(h.entries) == maxEntries {
			return Hashes{}, false
		}
		h.entries = append(h.entries, e)
	}
	c.literal("}")
	return h, !c.failed && c.rest == ""
}

// cursor reads text that has to look as expected; once it does not, all that
// follows fails too.
type cursor struct {
	rest   string
	failed bool
}

func (c *cursor) entry() (e recordedEntry) {
	e.name = c.text()
	c.literal(":")
	start := c.rest
	c.literal(`{"updateTimestamp":`)
	if !c.skip("null") {
		c.text()
	}
	c.literal(`,"hash":`)
	e.hash = c.text()
	c.literal(`,"sidecarSetName":`)
	c.text()
	c.literal(`,"sidecarList":`)
	c.list()
	if c.skip(`,"controllerRevision":`) {
		e.revision = c.text()
	}
	c.literal("}")
	e.raw = start[:len(start)-len(c.rest)]
	return e
}

func (c *cursor) list() {
	if c.skip("null") || c.skip("[]") {
		return
	}
	c.literal("[")
	c.text()
	for c.skip(",") {
		c.text()
	}
	c.literal("]")
}

// text reads a string that stands for itself.
func (c *cursor) text() string {
	c.literal(`"`)
	end := strings.IndexByte(c.rest, '"')
	if end < 0 || !isPlain(c.rest[:end]) {
		c.failed, end = true, 0
	}
	text := c.rest[:end]
	c.rest = c.rest[end:]
	c.literal(`"`)
	return text
}

func (c *cursor) literal(want string) { c.failed = !c.skip(want) || c.failed }

func (c *cursor) skip(want string) bool {
	var found bool
	c.rest, found = strings.CutPrefix(c.rest, want)
	return found
}

func (c *cursor) at(want string) bool { return strings.HasPrefix(c.rest, want) }
