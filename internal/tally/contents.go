package tally

import (
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
)

// Contents has the difference between each recorded content and the current one, by the
// hash without images. A content that is missing is no longer recorded in a revision.
// Contents is immutable.
type Contents map[podstate.Name]inplace.Difference

// Of returns the difference of the content that a Pod records; nil if it is unknown.
func (c Contents) Of(sidecarSet podstate.Name, r *podstate.Record) *inplace.Difference {
	in, _ := r.Injection(sidecarSet)
	if difference, ok := c[in.HashWithoutImage]; ok {
		return &difference
	}
	return nil
}

// SetContents sets the Contents for the content with this hash without images. It does
// nothing if that is not the current content.
func (t *Tally) SetContents(sidecarSet, hashWithoutImage string, c Contents) {
	s, ok := t.sets[sidecarSet]
	if !ok || s.hashWithoutImage != podstate.MakeName(hashWithoutImage) {
		return
	}
	s.contents = c
	t.followAll(s)
}

// differsIn reports whether a Pod records a content that differs in more than images.
func (s *sidecarSet) differsIn(r *podstate.Record) bool {
	in, _ := r.Injection(s.name)
	return in.HashWithoutImage != 0 && in.HashWithoutImage != s.hashWithoutImage
}
