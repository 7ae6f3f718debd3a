package inject

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
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
