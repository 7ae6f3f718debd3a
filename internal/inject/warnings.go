package inject

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// WarningKind says what a Warning is about. The values are fixed words, fit for a metric's label.
type WarningKind string

// The kinds of Warnings.
const (
	// WarningTransferEnv: transferEnv names a container or a variable that the Pod does not have.
	WarningTransferEnv WarningKind = "TransferEnv"
	// WarningVolume: the Pod has another volume of that name, or another SidecarSet brings one.
	WarningVolume WarningKind = "Volume"
	// WarningPortName: two containers have a port of that name, and a Service reaches one of them.
	WarningPortName WarningKind = "PortName"
)

// WarningKinds returns all kinds.
func WarningKinds() []WarningKind {
	return []WarningKind{WarningTransferEnv, WarningVolume, WarningPortName}
}

// remedies say how the user ends a Warning.
var remedies = map[WarningKind]string{
	WarningTransferEnv: "in transferEnv, name one of the app's containers that has the variable in its env, or set the variable in the sidecar's env",
	WarningVolume:      "rename the volume in spec.volumes, or remove it there to use the other one",
	WarningPortName:    "rename the port in the SidecarSet; with podInjectPolicy AfterAppContainer, the ports of the app come first",
}

// Warning says what a SidecarSet asks for and a Pod does not get, and the remedy. Text has at
// most a few names that the creator of the Pod has chosen, each cut to the length of a
// container's name, and none of the Pod's values.
type Warning struct {
	SidecarSet string
	Kind       WarningKind
	Text       string
}

// topic is what one Warning is about.
type topic struct {
	target *target
	kind   WarningKind
}

// facts are the first facts of a topic, and how many more there are.
type facts struct {
	told []string
	more int
}

const maxFacts = 3 // with the remedy, they fit into an Event

// notes collect the facts of all topics.
type notes map[topic]*facts

// tellSidecar adds a fact about a sidecar. The idle container of a hot-upgrade pair adds none: it
// has the same as the other one.
func (n *notes) tellSidecar(s placed, kind WarningKind, format string, args ...any) {
	if !s.idle {
		n.tell(s.target, kind, format, args...)
	}
}

// tell adds a fact about a SidecarSet, unless the Pod has it already: then an earlier
// call has told it.
func (n *notes) tell(t *target, kind WarningKind, format string, args ...any) {
	if t.skip != "" {
		return
	}
	if *n == nil {
		*n = notes{}
	}
	f := (*n)[topic{t, kind}]
	if f == nil {
		f = new(facts)
		(*n)[topic{t, kind}] = f
	}
	if len(f.told) == maxFacts {
		f.more++
		return
	}
	f.told = append(f.told, fmt.Sprintf(format, args...))
}

// list makes the Warnings.
func (n notes) list(targets []target) (list []Warning) {
	if n == nil {
		return nil
	}
	for i := range targets {
		t := &targets[i]
		for _, kind := range WarningKinds() {
			if f := n[topic{t, kind}]; f != nil {
				text := strings.Join(f.told, "; ")
				if f.more > 0 {
					text += fmt.Sprintf("; and %d more", f.more)
				}
				list = append(list, Warning{t.Name(), kind, text + ". Remedy: " + remedies[kind]})
			}
		}
	}
	return list
}

// notePorts finds names of ports that a Service resolves to another container, in the order
// in which the controllers of Services look: containers, then native sidecars.
func notePorts(s *selected, edits *edits, notes *notes) {
	if !slices.ContainsFunc(s.targets, func(t target) bool { return t.skip == "" && t.hasNamedPorts }) {
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
		for _, container := range s.after(list, edits) {
			var of placed
			if container.Injected || container.edit != nil {
				of, _ = s.sidecarNamed(container.Name)
			}
			if of.target == nil {
				ports, _ := container.ports() // API servers refuse what cannot be read
				of.sidecar = &sidecar{ports: ports, native: container.isNative()}
			}
			if list == InitContainers && !of.native {
				continue
			}
			for _, p := range of.ports {
				port := key{p.Name, cmp.Or(p.Protocol, corev1.ProtocolTCP)}
				before, taken := first[port]
				switch {
				case p.Name == "":
				case !taken:
					first[port] = holder{container.Name, of.target, p.ContainerPort}
				case before.port != p.ContainerPort:
					notes.port(of.target, before.target, "a Service with targetPort %s reaches port %d of container %s, not port %d of container %s",
						quoted(p.Name), before.port, quoted(before.container), p.ContainerPort, quoted(container.Name))
				}
			}
		}
	}
}

// port tells the SidecarSet whose sidecar is not reached, or else the one whose sidecar
// is reached in place of the app. Both are nil for the app.
func (n *notes) port(hidden, reached *target, format string, args ...any) {
	switch {
	case hidden != nil && hidden.skip == "":
		n.tell(hidden, WarningPortName, format, args...)
	case reached != nil:
		n.tell(reached, WarningPortName, format, args...)
	}
}
