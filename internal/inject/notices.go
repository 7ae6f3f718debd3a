package inject

import (
	"fmt"
	"strings"
)

// NoticeKind says what a Notice is about. The values are fixed words, fit for a metric's label.
type NoticeKind string

// The kinds of Notices.
const (
	// NoticeTransferEnv: transferEnv names a container or a variable that the Pod does not have.
	NoticeTransferEnv NoticeKind = "TransferEnv"
	// NoticeVolume: the Pod has another volume of that name, or another SidecarSet brings one.
	NoticeVolume NoticeKind = "Volume"
	// NoticePortName: two containers have a port of that name, and a Service reaches one of them.
	NoticePortName NoticeKind = "PortName"
)

// NoticeKinds returns all kinds.
func NoticeKinds() []NoticeKind {
	return []NoticeKind{NoticeTransferEnv, NoticeVolume, NoticePortName}
}

// remedies say how the author of a SidecarSet ends a Notice.
var remedies = map[NoticeKind]string{
	NoticeTransferEnv: "in transferEnv, name one of the app's containers that has the variable in its env, or set the variable in the sidecar's env",
	NoticeVolume:      "rename the volume in spec.volumes, or remove it there to use the other one",
	NoticePortName:    "rename the port in the SidecarSet; with podInjectPolicy AfterAppContainer, the ports of the app come first",
}

// Notice says what a SidecarSet asks for and a Pod does not get, and the remedy. Text has at
// most a few names that the author of the Pod has chosen, each cut to the length of a
// container's name, and none of the Pod's values.
type Notice struct {
	SidecarSet string
	Kind       NoticeKind
	Text       string
}

// topic is what one Notice is about.
type topic struct {
	target *target
	kind   NoticeKind
}

// facts are the first facts of a topic, and how many more there are.
type facts struct {
	told []string
	more int
}

const maxFacts = 3 // with the remedy, they fit into an Event

// tell adds a fact about a sidecar. The idle container of a hot-upgrade pair adds none: it has
// the same as the other one.
func (c *computation) tell(s placed, kind NoticeKind, format string, args ...any) {
	if !s.idle {
		c.tellOf(s.target, kind, format, args...)
	}
}

// tellOf adds a fact about a SidecarSet, unless the Pod carries it already: then an earlier
// call has told it.
func (c *computation) tellOf(t *target, kind NoticeKind, format string, args ...any) {
	if t.skip != "" {
		return
	}
	if c.facts == nil {
		c.facts = map[topic]*facts{}
	}
	f := c.facts[topic{t, kind}]
	if f == nil {
		f = new(facts)
		c.facts[topic{t, kind}] = f
	}
	if len(f.told) == maxFacts {
		f.more++
		return
	}
	f.told = append(f.told, fmt.Sprintf(format, args...))
}

// notice adds the facts that are known once all is placed, and makes the Notices.
func (c *computation) notice() {
	c.noticePorts()
	if c.facts == nil {
		return
	}
	for i := range c.targets {
		t := &c.targets[i]
		for _, kind := range NoticeKinds() {
			if f := c.facts[topic{t, kind}]; f != nil {
				text := strings.Join(f.told, "; ")
				if f.more > 0 {
					text += fmt.Sprintf("; and %d more", f.more)
				}
				c.plan.Notices = append(c.plan.Notices, Notice{t.Name(), kind, text + ". Remedy: " + remedies[kind]})
			}
		}
	}
}
