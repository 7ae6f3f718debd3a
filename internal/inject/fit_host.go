package inject

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// nodePort identifies a port of the node as API servers do: they do not know that the empty
// address means all addresses.
type nodePort struct {
	protocol corev1.Protocol
	ip       string
	port     int32
}

func (p nodePort) String() string {
	if p.ip == "" {
		return fmt.Sprintf("%d/%s", p.port, p.protocol)
	}
	return fmt.Sprintf("%d/%s of address %s", p.port, p.protocol, p.ip)
}

// nodePort is the port of the node that a container's port takes; the zero value for none.
// With hostNetwork, API servers fill in hostPort.
func (v *SpecView) nodePort(p *corev1.ContainerPort) nodePort {
	port := p.HostPort
	if port == 0 && v.HostNetwork {
		port = p.ContainerPort
	}
	if port == 0 {
		return nodePort{}
	}
	return nodePort{cmp.Or(p.Protocol, corev1.ProtocolTCP), p.HostIP, port}
}

// fitPorts looks for ports of the node that a sidecar and another container take. As API
// servers do, it compares all containers with each other, and each init container with itself.
func (c *computation) fitPorts() error {
	if !c.wantsPorts() {
		return nil
	}
	taken := map[nodePort]string{} // by which container
	for i := range c.pod.Containers {
		view := &c.pod.Containers[i]
		if view.Raw == nil || len(view.Raw.Ports) == 0 || c.isInjectedNow(view.Name) {
			continue
		}
		var ports []corev1.ContainerPort
		if err := utiljson.Unmarshal(view.Raw.Ports, &ports); err != nil {
			return fmt.Errorf("reading the ports of container %q: %w", cut(view.Name), err)
		}
		for j := range ports {
			if port := c.pod.Spec.nodePort(&ports[j]); port != (nodePort{}) {
				taken[port] = view.Name
			}
		}
	}
	for i := range c.targets {
		t := &c.targets[i]
		if t.skip != "" {
			continue
		}
		for j := range t.initContainers {
			if err := c.fitPortsOf(t, &t.initContainers[j], map[nodePort]string{}); err != nil {
				return err
			}
		}
		for j := range t.containers {
			if err := c.fitPortsOf(t, &t.containers[j], taken); err != nil {
				return err
			}
		}
	}
	return nil
}

// wantsPorts reports whether a sidecar takes a port of the node.
func (c *computation) wantsPorts() bool {
	for i := range c.targets {
		t := &c.targets[i]
		if t.skip != "" || !c.pod.Spec.HostNetwork && t.Needs&PartPorts == 0 {
			continue
		}
		for _, list := range [][]sidecar{t.initContainers, t.containers} {
			for j := range list {
				if d := list[j].demands; d != nil && len(d.ports) > 0 {
					return true
				}
			}
		}
	}
	return false
}

// fitPortsOf adds the ports of a sidecar to those that are taken.
func (c *computation) fitPortsOf(t *target, s *sidecar, taken map[nodePort]string) error {
	if s.demands == nil {
		return nil
	}
	why := ""
	if c.pod.Spec.HostNetwork {
		why = ", because the Pod has hostNetwork"
	}
	for i := range s.demands.ports {
		p := &s.demands.ports[i]
		port := c.pod.Spec.nodePort(p)
		if port == (nodePort{}) {
			continue
		}
		member := fmt.Sprintf(".ports[%d]", i)
		if c.pod.Spec.HostNetwork && port.port != p.ContainerPort && !s.init {
			return s.misfit(t, member+".hostPort", fmt.Sprintf("%d differs from containerPort %d, and the Pod has hostNetwork", port.port, p.ContainerPort), "remove hostPort")
		}
		by, is := taken[port]
		if !is {
			taken[port] = s.name
			continue
		}
		owner, other := c.sidecarNamed(by)
		err := &FitError{SidecarSet: t.Name(), Container: s.name, Field: s.field + member,
			Problem: fmt.Sprintf("port %s of the node is taken by %s%s", port, ownerOf(by, owner), why),
			Remedy:  "use another port, or remove this one from the list, since a container may listen on ports that no list has"}
		switch {
		case owner == nil:
		case owner.Name() != t.Name():
			err.Other = owner.Name()
		case s.sibling != "" && other.name == s.sibling:
			err.Remedy = "use upgradeType ColdUpgrade, or remove the port from the list, since a container may listen on ports that no list has"
		}
		return err
	}
	return nil
}

// fitHostProcess checks that either all containers of the Pod are HostProcess containers of
// Windows, or none. The Pod has the network of the node then.
func (c *computation) fitHostProcess() error {
	ofPod := hostProcess(c.pod.Spec.SecurityContext)
	var is, isNot string // containers of the Pod's own, if it has that network
	for _, list := range [][]ContainerView{c.pod.InitContainers, c.pod.Containers} {
		for i := 0; i < len(list) && c.pod.Spec.HostNetwork; i++ {
			if raw := list[i].Raw; raw == nil || c.isInjectedNow(list[i].Name) {
				continue
			} else if own := cmp.Or(hostProcess(raw.SecurityContext), ofPod); own != nil && *own {
				is = list[i].Name
			} else {
				isNot = list[i].Name
			}
		}
	}
	for i := range c.targets {
		t := &c.targets[i]
		if t.skip != "" {
			continue
		}
		for _, list := range [][]sidecar{t.initContainers, t.containers} {
			for j := range list {
				if err := c.fitHostProcessOf(t, &list[j], ofPod, is, isNot); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (c *computation) fitHostProcessOf(t *target, s *sidecar, ofPod *bool, is, isNot string) error {
	var own *bool
	if s.demands != nil {
		own = s.demands.hostProcess
	}
	asks := own != nil && *own
	own = cmp.Or(own, ofPod)
	const member, remedy = ".securityContext.windowsOptions.hostProcess", "remove hostProcess from the sidecar"
	switch {
	case asks && !c.pod.Spec.HostNetwork:
		return s.misfit(t, member, "a HostProcess container is possible only in a Pod with hostNetwork", remedy)
	case asks && isNot != "":
		return s.misfit(t, member, fmt.Sprintf("%s is not a HostProcess container, and either all containers of a Pod are or none", ownerOf(isNot, nil)), remedy)
	case is != "" && (own == nil || !*own):
		return s.misfit(t, member, fmt.Sprintf("%s is a HostProcess container, and either all containers of a Pod are or none", ownerOf(is, nil)),
			"set hostProcess in spec.securityContext.windowsOptions of the Pod and nowhere else")
	}
	return nil
}

// hostProcess returns windowsOptions.hostProcess of a security context; nil if it is absent.
func hostProcess(securityContext json.RawMessage) *bool {
	if !bytes.Contains(securityContext, []byte("hostProcess")) {
		return nil
	}
	var sc corev1.SecurityContext
	if utiljson.Unmarshal(securityContext, &sc) != nil || sc.WindowsOptions == nil {
		return nil
	}
	return sc.WindowsOptions.HostProcess
}
