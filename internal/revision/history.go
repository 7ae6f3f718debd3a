package revision

import (
	"bytes"
	"cmp"
	"slices"

	appsv1 "k8s.io/api/apps/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// History has the revisions of one SidecarSet, oldest first.
type History []*appsv1.ControllerRevision

// NewHistory picks, from the revisions with the owner's name, the owner's and those without an
// owner. It orders them by number, then age, then name. The revisions are shared, not copied.
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

// Find returns the newest revision that records data, and the number that makes it the newest
// of all: its own number if it is the newest already. If no revision records data, found is
// nil, and the number is for a new revision.
//
// Only the bytes count. OpenKruise also compares the hash labels if both happen to be numbers,
// and then records the same revision twice after a collision.
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

// Adopts reports whether existing, which has the name of candidate, can be used in its place:
// it records the same data, and belongs to no other SidecarSet. A deleted SidecarSet of the
// same name is another one, and its revision is about to be deleted too. If Adopts returns
// false, the name is a collision.
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

// Choose returns the revision that a reference means: the one with the name, or the newest
// with the custom version; nil if there is none. The history has no revisions of other
// SidecarSets, and none of a deleted SidecarSet of the same name, which are about to be
// deleted too.
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

// defaultLimit is how many revisions are kept if the spec does not say.
const defaultLimit = 10

// maxBytes bounds the revisions of one SidecarSet, because every replica holds them: the
// default number of revisions, each with the longest spec that is accepted.
const maxBytes = defaultLimit * 256 << 10

// Surplus returns the revisions to delete, oldest first. Without them the number of revisions
// is within the limit, and they take no more than maxBytes. Surplus keeps the latest revision,
// those that Pods run, by inUse, and the one that injection uses. tooMany is how many
// revisions are too many because of that.
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

// newestWithin returns how many of the newest revisions fit into a number of bytes. It is at
// least one, if there is one.
func (h History) newestWithin(bytes int) (n int) {
	for i := len(h) - 1; i >= 0; i-- {
		if bytes -= len(h[i].Data.Raw); bytes < 0 && n > 0 {
			break
		}
		n++
	}
	return n
}
