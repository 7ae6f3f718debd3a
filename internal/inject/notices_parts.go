package inject

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"

	corev1 "k8s.io/api/core/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// noticeVolumes compares the volumes that the SidecarSets bring with those that the Pod gets.
func (c *computation) noticeVolumes() {
	missing := 0
	for i := range c.targets {
		if t := &c.targets[i]; t.skip == "" {
			missing += len(t.volumes)
		}
	}
	planned := [][]Edit{c.plan.Replacements, c.plan.Insertions}
	for _, edits := range planned {
		for i := range edits {
			if edits[i].List == Volumes {
				missing--
			}
		}
	}
	if missing == 0 {
		return
	}
	brought := map[string]*Edit{}
	for _, edits := range planned {
		for i := range edits {
			if e := &edits[i]; e.List == Volumes {
				brought[e.Name] = e
			}
		}
	}
	for i := range c.targets {
		if t := &c.targets[i]; t.skip == "" {
			for _, v := range t.volumes {
				c.noticeVolume(t, v, brought[v.name])
			}
		}
	}
}

// noticeVolume compares a volume with the one that the plan has under that name; nil if the
// Pod keeps its own. A SidecarSet that brings an emptyDir lets the Pod bring something better.
func (c *computation) noticeVolume(t *target, v part, planned *Edit) {
	if at := c.volumeAt(v.name); planned != nil && at >= 0 && planned.SidecarSet == t.Name() && kindOf(c.pod.Volumes[at].Body) != kindOf(v.body) {
		c.tellOf(t, NoticeVolume, "volume %s takes the place of the Pod's own, which is of another kind", quoted(v.name))
	}
	if planned != nil {
		if planned.SidecarSet != t.Name() && !satisfies(planned.Body, v.body) {
			c.tellOf(t, NoticeVolume, "SidecarSet %q brings another volume %s", planned.SidecarSet, quoted(v.name))
		}
		return
	}
	at := c.volumeAt(v.name)
	isEmptyDir := bytes.HasPrefix(v.body, []byte(`{"emptyDir":`)) // it was written from a map
	if at >= 0 && !isEmptyDir && !satisfies(c.pod.Volumes[at].Body, v.body) {
		c.tellOf(t, NoticeVolume, "the Pod has another volume %s of its own", quoted(v.name))
	}
}

// satisfies reports whether a volume is the wanted one. API servers have filled in defaults.
func satisfies(has, want json.RawMessage) bool {
	if bytes.Equal(has, want) {
		return true
	}
	var x, y any
	return mayEqual(has, want) && utiljson.Unmarshal(has, &x) == nil && utiljson.Unmarshal(want, &y) == nil && meets(x, y)
}

// meets reports whether a JSON value is the wanted one with defaults filled in.
func meets(has, want any) bool {
	switch want := want.(type) {
	case map[string]any:
		members, ok := has.(map[string]any)
		for name, value := range members {
			if _, wanted := want[name]; !wanted {
				ok = ok && mayBeDefault(value)
			}
		}
		for name, value := range want {
			ok = ok && meets(members[name], value)
		}
		return ok
	case []any:
		items, ok := has.([]any)
		return ok && slices.EqualFunc(items, want, meets)
	default:
		return has == want || has == nil && (want == "" || want == false)
	}
}

// mayBeDefault reports whether API servers may have filled in a member of a volume. None of
// their defaults is an object, a list or true.
func mayBeDefault(value any) bool {
	switch value := value.(type) {
	case map[string]any, []any:
		return false
	case bool:
		return !value
	default:
		return true
	}
}

// namedPort is a port that a Service can refer to by its name.
type namedPort struct {
	Name          string `json:"name"`
	Protocol      string `json:"protocol"`
	ContainerPort int32  `json:"containerPort"`
}

// namedPorts are those of a sidecar. Services do not look at plain init containers.
func namedPorts(list string, c *appsv1beta1.SidecarContainer) (ports []namedPort) {
	if list == string(InitContainers) && !c.IsNative() {
		return nil
	}
	for _, p := range c.Ports {
		if p.Name != "" {
			ports = append(ports, namedPort{p.Name, string(p.Protocol), p.ContainerPort})
		}
	}
	return ports
}

// noticePorts finds names of ports that a Service resolves to another container, in the order
// in which the controllers of Services look: containers, then native sidecars.
func (c *computation) noticePorts() {
	if !slices.ContainsFunc(c.targets, func(t target) bool { return t.skip == "" && t.namesPorts }) {
		return
	}
	first := map[namedPort]holder{} // by name and protocol
	c.noticePortsOf(first, Containers, c.pod.Containers, c.place(nil, func(t *target) []sidecar { return t.containers }))
	c.noticePortsOf(first, InitContainers, c.pod.InitContainers, c.place(nil, func(t *target) []sidecar { return t.initContainers }))
}

// holder is a port and the container that has it.
type holder struct {
	container string
	target    *target // nil for the app
	port      int32
}

func (c *computation) noticePortsOf(first map[namedPort]holder, list List, views []ContainerView, sidecars []placed) {
	byName := make(map[string]*placed, len(sidecars))
	for i := range sidecars {
		byName[sidecars[i].name] = &sidecars[i]
	}
	for _, container := range c.after(list, views) {
		h, ports := holder{container: container.Name}, []namedPort(nil)
		if s := byName[container.Name]; s != nil {
			h.target, ports = s.target, s.ports
		} else if raw := container.Raw; raw != nil && (list == Containers || raw.RestartPolicy == string(corev1.ContainerRestartPolicyAlways)) {
			_ = utiljson.Unmarshal(raw.Ports, &ports) // API servers refuse what cannot be read
		}
		for _, p := range ports {
			h.port = p.ContainerPort
			p.ContainerPort, p.Protocol = 0, cmp.Or(p.Protocol, string(corev1.ProtocolTCP))
			before, taken := first[p]
			switch {
			case p.Name == "":
			case !taken:
				first[p] = h
			case before.port != h.port:
				c.noticePort(h.target, before.target, "a Service with targetPort %s reaches port %d of container %s, not port %d of container %s",
					quoted(p.Name), before.port, quoted(before.container), h.port, quoted(h.container))
			}
		}
	}
}

// noticePort tells the SidecarSet whose sidecar is not reached, or else the one whose sidecar
// is reached in place of the app. Both are nil for the app.
func (c *computation) noticePort(hidden, reached *target, format string, args ...any) {
	switch {
	case hidden != nil && hidden.skip == "":
		c.tellOf(hidden, NoticePortName, format, args...)
	case reached != nil:
		c.tellOf(reached, NoticePortName, format, args...)
	}
}

// after is a list of the Pod after injection. Sidecars have no more than a name in it.
func (c *computation) after(list List, views []ContainerView) []ContainerView {
	all := slices.Clone(views)
	for _, e := range c.plan.Insertions {
		if e.List == list {
			all = slices.Insert(all, e.Index, ContainerView{Name: e.Name})
		}
	}
	return all
}

// noticeMetadata finds annotations for which two SidecarSets have values, and one got its own.
func (c *computation) noticeMetadata() {
	var patching []*target // in the order of patchMetadata
	for i := range c.targets {
		if t := &c.targets[i]; t.skip == "" && len(t.metadata) > 0 {
			patching = append(patching, t)
		}
	}
	if len(patching) < 2 {
		return
	}
	writers := map[string]int{} // by annotation, the target whose value it has
	for i, t := range patching {
		for _, rule := range t.metadata {
			for _, key := range rule.keys {
				_, written := writers[key]
				_, own := c.pod.Annotations[key]
				if rule.policy == appsv1beta1.SidecarSetOverwritePatchPolicy || !written && !(own && rule.retains()) {
					writers[key] = i
				}
			}
		}
	}
	for i, t := range patching {
		for _, rule := range t.metadata {
			for _, key := range rule.keys {
				writer, written := writers[key]
				_, own := c.pod.Annotations[key]
				has, _ := c.annotation(key)
				loses := writer > i || writer < i && rule.retains()
				if written && loses && !(own && rule.retains()) && has != rule.values[key] {
					c.tellOf(t, NoticeMetadata, "annotation %s has the value of SidecarSet %q", quoted(key), patching[writer].Name())
				}
			}
		}
	}
}

// retains reports whether an annotation that is present stays.
func (r *metadataRule) retains() bool {
	return r.policy == appsv1beta1.SidecarSetRetainPatchPolicy || r.policy == ""
}
