package revision

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"strconv"
)

// Hashes returns the values of the annotations kruise.io/sidecarset-hash and
// kruise.io/sidecarset-hash-without-image for the spec of a defaulted
// SidecarSet of either version. Two specs have the same hash iff their
// containers (and, once one of them is a native sidecar, their init containers)
// are the same; members that this build does not know count too. An error is a
// *TypeError. The spec is not changed.
func Hashes(spec map[string]any) (withImage, withoutImage string, err error) {
	text, err := preimage(spec)
	if err != nil {
		return "", "", err
	}
	bare, err := preimage(withoutImages(spec))
	if err != nil {
		return "", "", err
	}
	return digest(text), digest(bare), nil
}

// TypeError says that a member has a value which its type cannot hold.
type TypeError struct {
	Path string // from the top of the object, such as spec.containers[0].image
	Want string // what the type requires
	Got  string // what the member has, without the text of strings
}

func (e *TypeError) Error() string {
	return fmt.Sprintf("%s: must be %s, not %s", e.Path, e.Want, e.Got)
}

var containers = list(sidecarContainer)

// preimage is the text that is hashed. docs/reference/hash.md
// describes it for those who want to compute it elsewhere.
func preimage(spec map[string]any) ([]byte, error) {
	e := encoder{buf: []byte(`{"containers":`)}
	unknown := make(map[string]any)
	if err := e.containers(spec, "containers", unknown); err != nil {
		return nil, err
	}
	if hasNativeSidecar(spec["initContainers"]) {
		e.buf = append(e.buf, `,"initContainers":`...)
		if err := e.containers(spec, "initContainers", unknown); err != nil {
			return nil, err
		}
	}
	e.buf = append(e.buf, '}')
	if len(unknown) > 0 {
		e.buf = append(e.buf, '\n')
		e.buf = appendObject(e.buf, unknown)
	}
	return e.buf, nil
}

// containers writes one list and stores its unknown members by container name.
func (e *encoder) containers(spec map[string]any, list string, unknown map[string]any) error {
	byIndex, err := e.value(containers, spec[list])
	if err != nil {
		return under("spec."+list, err)
	}
	if byIndex == nil {
		return nil
	}
	elems, _ := spec[list].([]any)
	byName := make(map[string]any, len(byIndex))
	for i, elem := range elems {
		members, found := byIndex[strconv.Itoa(i)]
		if !found {
			continue
		}
		name, _ := elem.(map[string]any)["name"].(string)
		if _, taken := byName[name]; taken { // validation refuses this, but it needs a hash
			name += "#" + strconv.Itoa(i)
		}
		byName[name] = members
	}
	unknown[list] = byName
	return nil
}

// hasNativeSidecar reports whether init containers take part in the hash: if one of them is a
// native sidecar, all of them do, plain ones included.
func hasNativeSidecar(initContainers any) bool {
	elems, _ := initContainers.([]any)
	for _, elem := range elems {
		if members, _ := elem.(map[string]any); members["restartPolicy"] == "Always" {
			return true
		}
	}
	return false
}

// withoutImages copies as much of the spec as it takes to leave out images.
func withoutImages(spec map[string]any) map[string]any {
	bare := maps.Clone(spec)
	for _, list := range []string{"containers", "initContainers"} {
		elems, ok := spec[list].([]any)
		if !ok {
			continue
		}
		copied := make([]any, len(elems))
		for i, elem := range elems {
			copied[i] = elem
			if members, ok := elem.(map[string]any); ok {
				members = maps.Clone(members)
				delete(members, "image")
				copied[i] = members
			}
		}
		bare[list] = copied
	}
	return bare
}

// digest is SHA-256 in lower-case hex, in the alphabet that Kubernetes uses for
// generated names.
func digest(text []byte) string {
	sum := sha256.Sum256(text)
	return safeEncode(hex.EncodeToString(sum[:]))
}

// safeAlphabet leaves out vowels and look-alikes, so that no word appears.
const safeAlphabet = "bcdfghjklmnpqrstvwxz2456789"

// safeEncode maps each character into safeAlphabet by its code. It loses
// information: 0 and f both become 4, for example.
func safeEncode(s string) string {
	encoded := make([]byte, len(s))
	for i := range len(s) {
		encoded[i] = safeAlphabet[int(s[i])%len(safeAlphabet)]
	}
	return string(encoded)
}

// mismatch returns the error for a value of another type than the wanted one.
func mismatch(want string, got any) error {
	return &TypeError{Want: want, Got: describe(got)}
}

// describe never repeats the value of a string: it may be a secret.
func describe(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case string:
		return "a string"
	case bool:
		return strconv.FormatBool(v)
	case []any:
		return "a list"
	case map[string]any:
		return "an object"
	default:
		return "the number " + string(appendJSON(nil, v))
	}
}

// under puts the place of the value in front of the place of the error.
func under(parent string, err error) error {
	if e, ok := err.(*TypeError); ok { //nolint:errorlint // this package's own, never wrapped
		e.Path = parent + e.Path
	}
	return err
}
