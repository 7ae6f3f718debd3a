package inject

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// noticePorts finds names of ports that a Service resolves to another container, in the order
// in which the controllers of Services look: containers, then native sidecars.
func (c *computation) noticePorts() {
	if !slices.ContainsFunc(c.targets, func(t target) bool { return t.skip == "" && t.hasNamedPorts }) {
		return
	}
	type key struct {
		name     string
		protocol corev1.Protocol
	}
	type holder struct {
		container string
		target    *target // nil for the app
		port      int32
	}
	first := map[key]holder{}
	for _, list := range [...]List{Containers, InitContainers} {
		for _, container := range c.after(list) {
			var s placed
			if container.Injected || container.edit != nil {
				s, _ = c.sidecarNamed(container.Name)
			}
			if s.target == nil {
				ports, _ := container.ports() // API servers refuse what cannot be read
				s.sidecar = &sidecar{ports: ports, native: container.isNative()}
			}
			if list == InitContainers && !s.native {
				continue
			}
			for _, p := range s.ports {
				port := key{p.Name, cmp.Or(p.Protocol, corev1.ProtocolTCP)}
				before, taken := first[port]
				switch {
				case p.Name == "":
				case !taken:
					first[port] = holder{container.Name, s.target, p.ContainerPort}
				case before.port != p.ContainerPort:
					c.noticePort(s.target, before.target, "a Service with targetPort %s reaches port %d of container %s, not port %d of container %s",
						quoted(p.Name), before.port, quoted(before.container), p.ContainerPort, quoted(container.Name))
				}
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

// noticeMetadata finds annotations for which two SidecarSets have values, and one got its own.
func (c *computation) noticeMetadata() {
	var patching []*target
	for t := range c.injecting() {
		if len(t.metadata) > 0 {
			patching = append(patching, t)
		}
	}
	if len(patching) < 2 {
		return
	}
	// forEach is in the order in which the patches were carried out. It leaves out those that
	// keep the Pod's own value.
	forEach := func(do func(i int, rule *metadataRule, key string)) {
		for i, t := range patching {
			for j := range t.metadata {
				rule := &t.metadata[j]
				for _, key := range rule.keys {
					if _, own := c.pod.Annotations[key]; !own || !rule.retains() {
						do(i, rule, key)
					}
				}
			}
		}
	}
	writers := map[string]int{} // by annotation, the target whose value it has
	forEach(func(i int, rule *metadataRule, key string) {
		if _, written := writers[key]; !written || rule.policy == appsv1beta1.SidecarSetOverwritePatchPolicy {
			writers[key] = i
		}
	})
	forEach(func(i int, rule *metadataRule, key string) {
		writer := writers[key]
		has, _ := c.annotation(key)
		if (writer > i || writer < i && rule.retains()) && has != rule.values[key] {
			c.tellOf(patching[i], NoticeMetadata, "annotation %s has the value of SidecarSet %q", quoted(key), patching[writer].Name())
		}
	})
}

// retains reports whether an annotation that is present stays.
func (r *metadataRule) retains() bool {
	return r.policy == appsv1beta1.SidecarSetRetainPatchPolicy || r.policy == ""
}
