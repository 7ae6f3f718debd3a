package inject

import (
	"encoding/json"
	"iter"
	"strings"

	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// source is one of the Pod's own containers, from which sidecars copy.
type source struct {
	*ContainerView
	env             keyed
	mounts, devices []podElement
}

// podElement is a mount or a device, with its JSON as submitted.
type podElement struct {
	element
	volume, subPathExpr string
}

func newSource(view *ContainerView) *source {
	s := &source{ContainerView: view}
	s.env.list = podElements(view.Env, func(m *elementMembers, body json.RawMessage) (element, bool) {
		return element{m.Name, body}, m.Name != ""
	})
	s.mounts = podElements(view.VolumeMounts, func(m *elementMembers, body json.RawMessage) (podElement, bool) {
		return podElement{element{m.MountPath, body}, m.Name, m.SubPathExpr}, m.MountPath != ""
	})
	s.devices = podElements(view.VolumeDevices, func(m *elementMembers, body json.RawMessage) (podElement, bool) {
		return podElement{element{m.DevicePath, body}, m.Name, ""}, m.DevicePath != ""
	})
	return s
}

// elementMembers are the members that decide, of env, volumeMounts and volumeDevices.
type elementMembers struct {
	Name        string `json:"name"`
	MountPath   string `json:"mountPath"`
	DevicePath  string `json:"devicePath"`
	SubPathExpr string `json:"subPathExpr"`
}

// podElements decodes a list. It leaves out elements that the API server would refuse.
func podElements[T any](list json.RawMessage, element func(*elementMembers, json.RawMessage) (T, bool)) []T {
	var bodies []json.RawMessage
	if len(list) == 0 || utiljson.Unmarshal(list, &bodies) != nil {
		return nil
	}
	out := make([]T, 0, len(bodies))
	for _, body := range bodies {
		var members elementMembers
		if utiljson.Unmarshal(body, &members) != nil {
			continue
		}
		if e, ok := element(&members, body); ok {
			out = append(out, e)
		}
	}
	return out
}

// copyVariable appends the container's variable of that name to env, unless it is
// there already. Of several the last one counts, as it does in the container.
func (s *source) copyVariable(name string, env *keyed) {
	if i := s.env.find(name); i >= 0 && !env.has(name) {
		env.add(s.env.list[i])
	}
}

// referencesIn yields the variables $(NAME) in a subPathExpr. As in OpenKruise,
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
