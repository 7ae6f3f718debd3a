package defaults

import (
	"iter"
	"strconv"

	"gomodules.xyz/jsonpatch/v2"

	"github.com/sidecarset/operator/internal/jsonread"
)

// edits collects what was changed.
type edits struct{ operations []jsonpatch.Operation }

// node is an object inside the object that is being defaulted. If it is absent or has
// another type, its methods set nothing.
type node struct {
	members map[string]any // nil: absent
	path    string         // JSON pointer
	edits   *edits         // nil inside an object that was itself added: it is added whole
}

// set writes a member, whatever was there.
func (n node) set(name string, value any) {
	if n.members == nil {
		return
	}
	if n.edits != nil && len(n.edits.operations) <= MaxOperations {
		op := "add"
		if _, exists := n.members[name]; exists {
			op = "replace"
		}
		n.edits.operations = append(n.edits.operations, jsonpatch.NewOperation(op, n.pointer(name), value))
	}
	n.members[name] = value
}

// absent sets a member if it is absent or null. Zero is a value like any other.
func (n node) absent(name string, value any) {
	if n.members[name] == nil {
		n.set(name, value)
	}
}

// unset sets a member, a text or a whole number, if it is absent, null or zero: here zero
// means "not set".
func (n node) unset(name string, value any) {
	present := n.members[name]
	_, isText := value.(string)
	if present == nil || isText && present == "" || !isText && (present == int64(0) || present == float64(0)) {
		n.set(name, value)
	}
}

// text is a member that is a string, or "".
func (n node) text(name string) string {
	s, _ := n.members[name].(string)
	return s
}

// child is a member that is an object.
func (n node) child(name string) node {
	members, _ := n.members[name].(map[string]any)
	if members == nil {
		return node{}
	}
	return node{members, n.pointer(name), n.edits}
}

// ensure is child, adding the object where it is absent from an object.
func (n node) ensure(name string) node {
	if n.members == nil || n.members[name] != nil {
		return n.child(name)
	}
	added := map[string]any{}
	n.set(name, added)
	return node{members: added}
}

// elements yields the elements of a list that are objects.
func (n node) elements(name string) iter.Seq[node] {
	return func(yield func(node) bool) {
		list, _ := n.members[name].([]any)
		for i, elem := range list {
			members, _ := elem.(map[string]any)
			if members == nil {
				continue
			}
			if !yield(node{members, n.pointer(name) + "/" + strconv.Itoa(i), n.edits}) {
				return
			}
		}
	}
}

func (n node) pointer(name string) string {
	return string(jsonread.AppendPointer([]byte(n.path), name))
}
