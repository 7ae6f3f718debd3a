package validation

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

func validatePorts(ports []corev1.ContainerPort, path *field.Path) field.ErrorList {
	names := sets.New[string]()
	var errs field.ErrorList
	for i := range ports {
		p, at := &ports[i], path.Index(i)
		if p.Name != "" {
			errs = append(errs, invalid(at.Child("name"), p.Name, validation.IsValidPortName(p.Name))...)
			if names.Has(p.Name) {
				errs = append(errs, duplicate(at.Child("name"), p.Name, "another port of this container has this name; rename one"))
			}
			names.Insert(p.Name)
		}
		if p.ContainerPort == 0 {
			errs = append(errs, field.Required(at.Child("containerPort"), "say which port the sidecar listens on, 1 to 65535"))
		} else {
			errs = append(errs, invalid(at.Child("containerPort"), p.ContainerPort, validation.IsValidPortNum(int(p.ContainerPort)))...)
		}
		if p.HostPort != 0 {
			errs = append(errs, invalid(at.Child("hostPort"), p.HostPort, validation.IsValidPortNum(int(p.HostPort)))...)
		}
		errs = append(errs, validateValue(p.Protocol, at.Child("protocol"), corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP)...)
	}
	return append(errs, validateHostPorts(ports, sets.New[string](), path)...)
}

// validateHostPortsAcross looks for one port of the node that two containers
// want. Init containers may share one: they do not run at the same time.
func validateHostPortsAcross(containers []appsv1beta1.SidecarContainer, path *field.Path) field.ErrorList {
	taken := sets.New[string]()
	var errs field.ErrorList
	for i := range containers {
		within := sets.New[string]() // reported by validatePorts
		validateHostPorts(containers[i].Ports, within, path)
		for j := range containers[i].Ports {
			if key := hostPortKey(&containers[i].Ports[j]); key != "" && taken.Has(key) {
				errs = append(errs, duplicate(path.Index(i).Child("ports").Index(j).Child("hostPort"), key, "another container of this SidecarSet has this port of the node; choose another one"))
			}
		}
		taken = taken.Union(within)
	}
	return errs
}

// validateHostPorts refuses a port of the node that is taken, and adds all.
func validateHostPorts(ports []corev1.ContainerPort, taken sets.Set[string], path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range ports {
		key := hostPortKey(&ports[i])
		if key == "" {
			continue
		}
		if taken.Has(key) {
			errs = append(errs, duplicate(path.Index(i).Child("hostPort"), key, "another port of this container has this port of the node; remove one"))
		}
		taken.Insert(key)
	}
	return errs
}

// hostPortKey is equal for ports that cannot exist on one node; "" for none.
func hostPortKey(p *corev1.ContainerPort) string {
	if p.HostPort == 0 {
		return ""
	}
	protocol := p.Protocol
	if protocol == "" {
		protocol = corev1.ProtocolTCP
	}
	return fmt.Sprintf("%s/%s/%d", protocol, p.HostIP, p.HostPort)
}

// validatePort checks a port that is given by number or name.
func validatePort(port intstr.IntOrString, path *field.Path) field.ErrorList {
	if port.Type == intstr.String {
		return invalid(path, port.StrVal, validation.IsValidPortName(port.StrVal))
	}
	return invalid(path, port.IntVal, validation.IsValidPortNum(int(port.IntVal)))
}
