package tally

import (
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
)

// Contents are what the contents that Pods record differ in from the current one,
// by their hashes without images. A content that is not in it is not recorded any
// more. It is not changed once it is made.
type Contents map[podstate.Name]inplace.Difference

// Of returns what the content that a Pod records differs in, nil if that is not known.
func (c Contents) Of(sidecarSet podstate.Name, r *podstate.Record) *inplace.Difference {
	in, _ := r.Injection(sidecarSet)
	if difference, ok := c[in.HashWithoutImage]; ok {
		return &difference
	}
	return nil
}

// Compared returns the Contents of a SidecarSet, nil if SetContents has not been called
// for its current content, and whether a Pod records a content that differs in more
// than images.
func (t *Tally) Compared(sidecarSet string) (c Contents, needed bool) {
	s, ok := t.sets[sidecarSet]
	if !ok {
		return nil, false
	}
	return s.contents, s.differing > 0
}

// SetContents says what the contents that Pods record differ in from the one with
// this hash without images. It does nothing if that is not the current one.
func (t *Tally) SetContents(sidecarSet, hashWithoutImage string, c Contents) {
	s, ok := t.sets[sidecarSet]
	if !ok || s.hashWithoutImage != podstate.MakeName(hashWithoutImage) {
		return
	}
	s.contents = c
	t.followAll(s)
}

// differsIn reports whether a Pod records a content that differs in more than images.
func (t *terms) differsIn(set podstate.Name, r *podstate.Record) bool {
	in, _ := r.Injection(set)
	return in.HashWithoutImage != 0 && in.HashWithoutImage != t.hashWithoutImage
}
