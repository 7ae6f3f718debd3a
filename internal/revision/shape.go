package revision

import (
	"slices"
	"strings"
)

// A shape says how one JSON value is written into the preimage of the hash and
// into what a revision records. It is the part of a Go type that encoding/json
// looks at, written down as data.
type shape struct {
	kind   kind
	fields []field // kindObject, in the order in which they are written
	elem   *shape  // kindList and kindMap
}

type kind int

const (
	kindString kind = iota
	kindBool
	kindInt32
	kindInt64
	kindQuantity    // a Kubernetes quantity, written in canonical form
	kindIntOrString // a port or the like
	kindObject
	kindList
	kindMap // any keys, written sorted
)

// A field is one member of an object.
type field struct {
	name     string
	shape    *shape
	presence presence
}

// presence says when a member is written.
type presence int

const (
	// dropZero leaves out "", 0, false and empty lists and maps.
	dropZero presence = iota
	// always writes the zero value where the member is absent.
	always
	// dropAbsent writes whatever is there, zero or not.
	dropAbsent
	// nullAbsent writes null where the member is absent.
	nullAbsent
)

var (
	text        = &shape{kind: kindString}
	boolean     = &shape{kind: kindBool}
	integer32   = &shape{kind: kindInt32}
	integer64   = &shape{kind: kindInt64}
	quantity    = &shape{kind: kindQuantity}
	intOrString = &shape{kind: kindIntOrString}
)

func object(groups ...[]field) *shape {
	return &shape{kind: kindObject, fields: slices.Concat(groups...)}
}
func list(elem *shape) *shape  { return &shape{kind: kindList, elem: elem} }
func mapOf(elem *shape) *shape { return &shape{kind: kindMap, elem: elem} }

// optional are members that are left out if they are zero. Their names are separated by
// spaces.
func optional(names string, s *shape) []field { return fieldsOf(names, s, dropZero) }

// required are members that are written even when they are absent.
func required(names string, s *shape) []field { return fieldsOf(names, s, always) }

// pointer are members for which absent and zero differ.
func pointer(names string, s *shape) []field { return fieldsOf(names, s, dropAbsent) }

// nullable are pointers that are written as null when they are absent.
func nullable(names string, s *shape) []field { return fieldsOf(names, s, nullAbsent) }

func fieldsOf(names string, s *shape, presence presence) (fields []field) {
	for name := range strings.FieldsSeq(names) {
		fields = append(fields, field{name, s, presence})
	}
	return fields
}
