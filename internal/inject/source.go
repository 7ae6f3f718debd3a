package inject

import (
	"encoding/json"
	"iter"
	"strings"

	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// source is one of the Pod's own containers as sidecars take from it.
type source struct {
	*ContainerView
	env, mounts, devices []podElement
	compared             int            // variables, to find others
	variables            map[string]int // places in env, once many have been compared
}

// podElement is an element of one of those lists, with its JSON as submitted.
type podElement struct {
	element
	name, subPathExpr string
}

func newSource(view *ContainerView) *source {
	s := &source{ContainerView: view}
	if raw := view.Raw; raw != nil {
		s.env = podElements(raw.Env, func(m *elementMembers) string { return m.Name })
		s.mounts = podElements(raw.VolumeMounts, func(m *elementMembers) string { return m.MountPath })
		s.devices = podElements(raw.VolumeDevices, func(m *elementMembers) string { return m.DevicePath })
	}
	return s
}

// elementMembers are the members that decide, of env, volumeMounts and volumeDevices.
type elementMembers struct {
	Name        string `json:"name"`
	MountPath   string `json:"mountPath"`
	DevicePath  string `json:"devicePath"`
	SubPathExpr string `json:"subPathExpr"`
}

// podElements decodes a list. Elements that are not what the API server would let
// pass are left out.
func podElements(list json.RawMessage, key func(*elementMembers) string) []podElement {
	var bodies []json.RawMessage
	if len(list) == 0 || utiljson.Unmarshal(list, &bodies) != nil {
		return nil
	}
	out := make([]podElement, 0, len(bodies))
	for _, body := range bodies {
		var members elementMembers
		if utiljson.Unmarshal(body, &members) == nil && key(&members) != "" {
			out = append(out, podElement{element{key(&members), body}, members.Name, members.SubPathExpr})
		}
	}
	return out
}

// copyVariable appends the container's variable of that name to env, unless it is
// there already. Of several the last one counts, as it does in the container.
func (s *source) copyVariable(name string, env *keyed) {
	if env.has(name) {
		return
	}
	if i := s.find(name); i >= 0 {
		env.add(s.env[i].element)
	}
}

// find returns the place of the last variable of that name; -1 if there is none.
func (s *source) find(name string) int {
	if s.variables != nil {
		if i, ok := s.variables[name]; ok {
			return i
		}
		return -1
	}
	if s.compared += len(s.env); s.compared > manyCompared {
		s.variables = make(map[string]int, len(s.env))
		for i := range s.env {
			s.variables[s.env[i].key] = i
		}
		return s.find(name)
	}
	for i := len(s.env) - 1; i >= 0; i-- {
		if s.env[i].key == name {
			return i
		}
	}
	return -1
}

// referencesIn yields the variables $(NAME) in a subPathExpr. As in the reference,
// $$(X) is not read as an escape.
func referencesIn(expr string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for {
			_, rest, found := strings.Cut(expr, "$(")
			if !found {
				return
			}
			n := 0
			for n < len(rest) && (isNameByte(rest[n]) || n > 0 && '0' <= rest[n] && rest[n] <= '9') {
				n++
			}
			if n > 0 && n < len(rest) && rest[n] == ')' && !yield(rest[:n]) {
				return
			}
			expr = rest[n:]
		}
	}
}

func isNameByte(b byte) bool {
	return 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z' || b == '-' || b == '.' || b == '_'
}
