package podstate

import (
	"hash/maphash"
	"unique"
)

// Name is what records keep of the names of containers, images, SidecarSets,
// hashes and revisions: enough to tell whether two are the same, in eight bytes
// however long they are. The zero Name is that of the empty string. A Name means
// nothing outside of the process.
//
// Two different strings have one Name with a probability of 2^-64. The seed is
// secret, so that the author of a Pod cannot look for such strings.
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
