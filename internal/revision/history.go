package revision

import (
	"bytes"
	"cmp"
	"slices"

	appsv1 "k8s.io/api/apps/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// History is what is recorded of one SidecarSet, oldest first.
type History []*appsv1.ControllerRevision

// NewHistory picks the owner's revisions and those without an owner from what
// carries its name, and orders them by number, then age, then name. The
// revisions are shared, not copied.
func NewHistory(revisions []*appsv1.ControllerRevision, owner Owner) History {
	var h History
	for _, r := range revisions {
		if r.Labels[appsv1beta1.LabelSidecarSetName] == owner.Name && owner.mayUse(r) {
			h = append(h, r)
		}
	}
	slices.SortFunc(h, byAge)
	return h
}

func byAge(a, b *appsv1.ControllerRevision) int {
	return cmp.Or(
		cmp.Compare(a.Revision, b.Revision),
		a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
		cmp.Compare(a.Name, b.Name),
	)
}

// Find returns the newest revision that records data, and the number that it has
// to have so that it is the newest of all: its own if it is that already. If
// there is none, the number is that of a new revision.
//
// Only bytes count. The reference also compares the hash labels if both happen
// to be numbers, and then records the same content twice after a collision.
func (h History) Find(data []byte) (found *appsv1.ControllerRevision, number int64) {
	next := int64(1)
	if len(h) > 0 {
		next += h[len(h)-1].Revision
	}
	for i, r := range slices.Backward(h) {
		switch {
		case !bytes.Equal(r.Data.Raw, data):
		case i == len(h)-1:
			return r, r.Revision
		default:
			return r, next
		}
	}
	return nil, next
}

// With returns the history with r as the newest, in place of an older state of it.
func (h History) With(r *appsv1.ControllerRevision) History {
	next := slices.DeleteFunc(slices.Clone(h), func(old *appsv1.ControllerRevision) bool { return old.Name == r.Name })
	return append(next, r)
}

// Adopts reports whether a revision whose name is taken is the one that would
// have been created: it records the same, and belongs to no other SidecarSet,
// not even to a deleted one of the same name, with which it will vanish.
// Otherwise the name is a collision.
func Adopts(existing, candidate *appsv1.ControllerRevision, owner Owner) bool {
	return bytes.Equal(existing.Data.Raw, candidate.Data.Raw) && owner.mayUse(existing) &&
		existing.Labels[appsv1beta1.LabelSidecarSetName] == owner.Name
}

// Reference names a recorded revision, as injectionStrategy.revision does.
type Reference struct {
	Name          string // wins over CustomVersion
	CustomVersion string
}

// ReferenceOf returns what injectionStrategy.revision names; false if it names
// nothing.
func ReferenceOf(r *appsv1beta1.SidecarSetInjectRevision) (Reference, bool) {
	switch {
	case r == nil:
		return Reference{}, false
	case r.RevisionName != nil:
		return Reference{Name: *r.RevisionName}, true
	case r.CustomVersion != nil:
		return Reference{CustomVersion: *r.CustomVersion}, true
	}
	return Reference{}, false
}

// String describes the reference for messages.
func (ref Reference) String() string {
	if ref.Name != "" {
		return "revisionName " + ref.Name
	}
	return "customVersion " + ref.CustomVersion
}

// Choose returns the revision that a reference means: that of the name, or the newest of
// the custom version; nil if there is none. What another SidecarSet has recorded is not
// in the history, nor is what a deleted one of its name has, with which it will vanish.
func (h History) Choose(ref Reference) *appsv1.ControllerRevision {
	for _, r := range slices.Backward(h) {
		if ref.means(r) {
			return r
		}
	}
	return nil
}

func (ref Reference) means(r *appsv1.ControllerRevision) bool {
	if ref.Name != "" {
		return r.Name == ref.Name
	}
	version, labelled := r.Labels[appsv1beta1.LabelCustomVersion]
	return labelled && version == ref.CustomVersion
}

// defaultLimit is how many revisions are kept where the spec does not say.
const defaultLimit = 10

// maxBytes bounds what is recorded of one SidecarSet, since every replica holds
// it: the default number of revisions of the longest spec that is accepted.
const maxBytes = defaultLimit * 256 << 10

// Surplus returns what to delete, oldest first, so that no more than the limit
// stay and they take no more than maxBytes, and how many are still too many then
// because they are needed: the latest one, those that Pods run, by inUse, and the one
// that injection uses.
func (h History) Surplus(spec *appsv1beta1.SidecarSetSpec, inUse func(name string) bool) (surplus History, tooMany int) {
	limit := defaultLimit
	if spec.RevisionHistoryLimit != nil {
		limit = max(1, int(*spec.RevisionHistoryLimit))
	}
	excess := len(h) - min(limit, h.newestWithin(maxBytes))
	if excess <= 0 {
		return nil, 0
	}
	var referred *appsv1.ControllerRevision
	if ref, ok := ReferenceOf(spec.InjectionStrategy.Revision); ok {
		referred = h.Choose(ref)
	}
	for _, r := range h[:len(h)-1] {
		if excess > 0 && r != referred && !inUse(r.Name) {
			surplus = append(surplus, r)
			excess--
		}
	}
	return surplus, excess
}

// newestWithin is how many of the newest revisions take that many bytes at most,
// the newest one in any case.
func (h History) newestWithin(bytes int) (n int) {
	for i := len(h) - 1; i >= 0; i-- {
		if bytes -= len(h[i].Data.Raw); bytes < 0 && n > 0 {
			break
		}
		n++
	}
	return n
}
