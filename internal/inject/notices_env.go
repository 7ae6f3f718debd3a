package inject

// noticeEnv finds what transferEnv does not copy. env is complete.
func (c *computation) noticeEnv(s placed, env *keyed) {
	for _, transfer := range s.template.transfers {
		c.noticeTransfer(s, transfer, env)
	}
}

// noticeTransfer finds what the sidecar does not have, although an entry of transferEnv names it.
func (c *computation) noticeTransfer(s placed, t transfer, env *keyed) {
	container := c.sourceName(t)
	from := c.source(container)
	for _, name := range t.names {
		if env.has(name) {
			continue
		}
		if from == nil {
			c.tell(s, NoticeTransferEnv, "container %s does not get variable %s of %s", quoted(s.name), quoted(name), c.whyNoSource(t, container))
			continue
		}
		why := ""
		if from.EnvFrom {
			why = ", and what it has from envFrom is not copied"
		}
		c.tell(s, NoticeTransferEnv, "container %s does not get variable %s: container %s does not have it in env%s", quoted(s.name), quoted(name), quoted(container), why)
	}
}

// whyNoSource names the container that an entry of transferEnv copies from, and says why that
// is not one of the app's.
func (c *computation) whyNoSource(t transfer, container string) string {
	named := "container " + quoted(container).String()
	switch {
	case container == "" && t.label != "":
		return "the container that label " + quoted(t.label).String() + " names, because the Pod does not have that label"
	case container == "" && t.annotation != "":
		return "the container that annotation " + quoted(t.annotation).String() + " names, because the Pod does not have that annotation"
	case c.belongsToSidecars(container):
		return named + ", because a SidecarSet brings it"
	case indexOf(c.pod.InitContainers, container) >= 0:
		return named + ", because it is among the Pod's initContainers"
	default:
		return named + ", which the Pod does not have"
	}
}
