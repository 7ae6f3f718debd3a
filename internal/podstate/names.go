package podstate

import (
	"hash/maphash"
	"unique"
)

// Name is what a record keeps instead of the name of a container, image, SidecarSet, hash or
// revision. It takes eight bytes, and shows whether two names are the same. The zero Name is
// that of the empty string. Another process gives the same string another Name.
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
