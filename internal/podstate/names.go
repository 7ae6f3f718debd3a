package podstate

import (
	"hash/maphash"
	"slices"
	"strings"
	"unique"

	"k8s.io/apimachinery/pkg/labels"
)

// Name is what a record keeps instead of the name of a container, image, SidecarSet, hash or
// revision. It takes eight bytes, and shows whether two names are the same. The zero Name is
// that of the empty string. Another process gives the same string another Name.
//
// Two different strings have one Name with a probability of 2^-64. The seed is
// secret, so that the creator of a Pod cannot look for such strings.
type Name uint64

var nameSeed = maphash.MakeSeed()

// MakeName returns the Name of a string.
func MakeName(s string) Name {
	if s == "" {
		return 0
	}
	return max(Name(maphash.String(nameSeed, s)), 1)
}

// Namespace is the interned name of a namespace.
type Namespace = unique.Handle[string]

// MakeNamespace interns the name of a namespace.
func MakeNamespace(name string) Namespace { return unique.Make(name) }

// LabelSet is an immutable set of labels. Equal sets share their memory, so
// that the Pods of one Deployment keep one set between them, and two sets are
// equal exactly if == says so. The zero value is the empty set.
type LabelSet struct {
	// text is "key=value,key=value" in key order; neither a key nor a value may
	// contain '=' or ','.
	text unique.Handle[string]
}

// MakeLabelSet returns the shared set of these labels, which it does not keep.
func MakeLabelSet(set map[string]string) LabelSet {
	if len(set) == 0 {
		return LabelSet{}
	}
	var space [16]string
	keys, size := space[:0], 0
	for key, value := range set {
		keys = append(keys, key)
		size += len(key) + len(value) + len("=,")
	}
	slices.Sort(keys)
	var text strings.Builder
	text.Grow(size)
	for i, key := range keys {
		if i > 0 {
			text.WriteByte(',')
		}
		text.WriteString(key)
		text.WriteByte('=')
		text.WriteString(set[key])
	}
	return LabelSet{unique.Make(text.String())}
}

// Labels returns the labels as a new map that shares the set's text.
func (s LabelSet) Labels() labels.Set {
	if s == (LabelSet{}) {
		return labels.Set{}
	}
	text := s.text.Value()
	set := make(labels.Set, strings.Count(text, ",")+1)
	for pair := range strings.SplitSeq(text, ",") {
		key, value, _ := strings.Cut(pair, "=")
		set[key] = value
	}
	return set
}
