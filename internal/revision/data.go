package revision

import (
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"strings"

	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/sidecarset/operator/internal/members"
)

// Data returns what a ControllerRevision records of the spec of a defaulted SidecarSet: a
// patch that replaces the spec by its injected members, as JSON with sorted members, HTML
// escaped, absent and empty lists as null. Containers are written in the normal form of
// OpenKruise's types, the other lists as they are. So a revision that OpenKruise recorded of a
// SidecarSet in its normal form has the same bytes, and with them the same name. Members that
// this build does not know are kept everywhere. An error is a *TypeError. The spec is not
// changed.
func Data(spec map[string]any) ([]byte, error) { return data(spec, members.Injected) }

func data(spec map[string]any, injected []members.Member) ([]byte, error) {
	dst := []byte(`{"spec":{"$patch":"replace"`)
	for _, m := range slices.SortedFunc(slices.Values(injected), func(a, b members.Member) int { return strings.Compare(a.Name, b.Name) }) {
		elems, err := typed[[]any](spec[m.Name], "a list")
		if err == nil && m.Kind == members.Containers {
			elems, err = normal(elems)
		}
		switch {
		case err != nil:
			return nil, under("spec."+m.Name, err)
		case len(elems) > 0:
			dst = appendList(append(dst, `,"`+m.Name+`":`...), elems)
		case m.Null:
			dst = append(dst, `,"`+m.Name+`":null`...)
		}
	}
	return append(dst, "}}"...), nil
}

// normal returns containers as the encoder writes them, and with their unknown members.
func normal(containers []any) ([]any, error) {
	normal := make([]any, len(containers))
	for i, c := range containers {
		var e encoder
		place := "[" + strconv.Itoa(i) + "]"
		unknown, err := e.value(sidecarContainer, c)
		if err != nil {
			return nil, under(place, err)
		}
		if err := utiljson.Unmarshal(e.buf, &normal[i]); err != nil {
			return nil, fmt.Errorf("reading %s back: %w", place, err)
		}
		restoreUnknown(normal[i], unknown)
	}
	return normal, nil
}

// restoreUnknown adds the unknown members that an encoder returned to the value that it wrote.
// It changes value.
func restoreUnknown(value any, unknown map[string]any) {
	for name, branch := range unknown {
		switch value := value.(type) {
		case map[string]any:
			inner, isTree := branch.(map[string]any)
			if written := value[name]; written == nil || !isTree {
				value[name] = branch
			} else {
				restoreUnknown(written, inner)
			}
		case []any:
			inner, isTree := branch.(map[string]any)
			if i, err := strconv.Atoi(name); err == nil && i < len(value) && isTree {
				restoreUnknown(value[i], inner)
			}
		}
	}
}

// Suffix returns the end of a revision's name, which depends on its data. If the name is
// taken, the same data with another collisionCount gives another suffix.
func Suffix(data []byte, collisionCount int32) string {
	h := fnv.New32()
	_, _ = h.Write(data) // a hash takes everything
	_, _ = h.Write(strconv.AppendInt(nil, int64(collisionCount), 10))
	return safeEncode(strconv.FormatUint(uint64(h.Sum32()), 10))
}

// maxPrefix keeps names within the 253 characters of a Kubernetes name: a dash
// and up to ten characters of suffix follow, and OpenKruise leaves room for 29.
const maxPrefix = 223

// Name is the name of the ControllerRevision of a SidecarSet with this suffix.
func Name(sidecarSet, suffix string) string {
	if len(sidecarSet) > maxPrefix {
		sidecarSet = sidecarSet[:maxPrefix]
	}
	return sidecarSet + "-" + suffix
}

// Spec reads the spec that Data has recorded. Members that are null are absent.
func Spec(data []byte) (map[string]any, error) {
	var object map[string]any
	if err := utiljson.Unmarshal(data, &object); err != nil {
		return nil, err
	}
	spec, ok := object["spec"].(map[string]any)
	if !ok {
		return nil, errors.New("it records no spec")
	}
	maps.DeleteFunc(spec, func(name string, value any) bool { return name == "$patch" || value == nil })
	return spec, nil
}
