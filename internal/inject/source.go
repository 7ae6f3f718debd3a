package inject

import (
	"encoding/json"

	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// source is one of the Pod's own containers as sidecars take from it.
type source struct {
	*ContainerView
	env, mounts, devices []podEntry
}

// podEntry is an element of one of those lists, with its JSON as submitted.
type podEntry struct {
	entry
	name, subPathExpr string
}

func newSource(view *ContainerView) *source {
	s := &source{ContainerView: view}
	if raw := view.Raw; raw != nil {
		s.env = podEntries(raw.Env, func(m *entryMembers) string { return m.Name })
		s.mounts = podEntries(raw.VolumeMounts, func(m *entryMembers) string { return m.MountPath })
		s.devices = podEntries(raw.VolumeDevices, func(m *entryMembers) string { return m.DevicePath })
	}
	return s
}

// entryMembers are the members that decide, of env, volumeMounts and volumeDevices.
type entryMembers struct {
	Name        string `json:"name"`
	MountPath   string `json:"mountPath"`
	DevicePath  string `json:"devicePath"`
	SubPathExpr string `json:"subPathExpr"`
}

// podEntries decodes a list. Elements that are not what the API server would let
// pass are left out.
func podEntries(list json.RawMessage, key func(*entryMembers) string) []podEntry {
	var bodies []json.RawMessage
	if len(list) == 0 || utiljson.Unmarshal(list, &bodies) != nil {
		return nil
	}
	out := make([]podEntry, 0, len(bodies))
	for _, body := range bodies {
		var members entryMembers
		if utiljson.Unmarshal(body, &members) == nil && key(&members) != "" {
			out = append(out, podEntry{entry{key(&members), body}, members.Name, members.SubPathExpr})
		}
	}
	return out
}

// appendVariable appends the container's variable of that name to env, unless it
// is there already. Of several the last one counts, as it does in the container.
func (s *source) appendVariable(env []entry, name string) []entry {
	if hasKey(env, name) {
		return env
	}
	for i := len(s.env) - 1; i >= 0; i-- {
		if s.env[i].key == name {
			return append(env, s.env[i].entry)
		}
	}
	return env
}
