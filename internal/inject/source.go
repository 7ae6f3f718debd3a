package inject

import (
	"encoding/json"

	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// source is one of the Pod's own containers as sidecars take from it.
type source struct {
	*ContainerView
	env, mounts, devices []podElement
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

// appendVariable appends the container's variable of that name to env, unless it
// is there already. Of several the last one counts, as it does in the container.
func (s *source) appendVariable(env []element, name string) []element {
	if hasKey(env, name) {
		return env
	}
	for i := len(s.env) - 1; i >= 0; i-- {
		if s.env[i].key == name {
			return append(env, s.env[i].element)
		}
	}
	return env
}
