package inject

import (
	"cmp"
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

// ports are those of a container of the Pod.
func (v *ContainerView) ports() (ports []corev1.ContainerPort, err error) {
	if len(v.Ports) == 0 {
		return nil, nil
	}
	if err := utiljson.Unmarshal(v.Ports, &ports); err != nil {
		return nil, fmt.Errorf("reading the ports of container %s: %w", quoted(v.Name), err)
	}
	return ports, nil
}

// fitPorts looks for ports of the node that a sidecar and another container take. As API
// servers do, it compares all containers with each other, and each init container with itself.
func (c *fitter) fitPorts() error {
	if !c.takesNodePorts() {
		return nil
	}
	taken := map[nodePort]string{} // by which container
	for i := range c.pod.Containers {
		view := &c.pod.Containers[i]
		if c.isInjectedNow(view) {
			continue
		}
		ports, err := view.ports()
		if err != nil {
			return err
		}
		for j := range ports {
			if port := c.pod.Spec.nodePort(&ports[j]); port != (nodePort{}) {
				taken[port] = view.Name
			}
		}
	}
	for s := range sidecarsOf(c.injecting()) {
		others := taken
		if s.list == InitContainers {
			others = map[nodePort]string{}
		}
		if err := c.fitPortsOf(s, others); err != nil {
			return err
		}
	}
	return nil
}

// takesNodePorts reports whether a sidecar takes a port of the node.
func (c *fitter) takesNodePorts() bool {
	for t := range c.injecting() {
		if c.pod.Spec.HostNetwork && t.hasPorts || t.hasNodePorts {
			return true
		}
	}
	return false
}

// fitPortsOf adds the ports of a sidecar to those that are taken.
func (c *fitter) fitPortsOf(s placed, taken map[nodePort]string) error {
	why := ""
	if c.pod.Spec.HostNetwork {
		why = ", because the Pod has hostNetwork"
	}
	for i := range s.ports {
		p := &s.ports[i]
		port := c.pod.Spec.nodePort(p)
		if port == (nodePort{}) {
			continue
		}
		member := fmt.Sprintf(".ports[%d]", i)
		if c.pod.Spec.HostNetwork && port.port != p.ContainerPort && s.list == Containers {
			return s.misfit(member+".hostPort", fmt.Sprintf("%d differs from containerPort %d, and the Pod has hostNetwork", port.port, p.ContainerPort), "remove hostPort")
		}
		by, isTaken := taken[port]
		if !isTaken {
			taken[port] = s.name
			continue
		}
		other, _ := c.sidecarNamed(by)
		instead := "use another port, or remove this one"
		if s.sibling != "" && by == s.sibling {
			instead = "use upgradeType ColdUpgrade, or remove the port"
		}
		err := s.misfit(member, fmt.Sprintf("port %s of the node is taken by %s%s", port, ownerOf(by, other.target), why),
			instead+" from the list, since a container may listen on ports that no list has")
		if other.target != nil && other.target != s.target {
			err.Other = other.target.Name()
		}
		return err
	}
	return nil
}
