package validation

import (
	"cmp"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

func validatePorts(ports []corev1.ContainerPort, path place) {
	names := sets.New[string]()
	for i := range ports {
		p, at := &ports[i], path.Index(i)
		if p.Name != "" {
			at.Child("name").invalidBy(p.Name, validation.IsValidPortName(p.Name))
			validateUnique(p.Name, names, at.Child("name"), "another port of this container has this name; rename one")
		}
		if p.ContainerPort == 0 {
			at.Child("containerPort").required("say which port the sidecar listens on, 1 to 65535")
		} else {
			at.Child("containerPort").invalidBy(p.ContainerPort, validation.IsValidPortNum(int(p.ContainerPort)))
		}
		if p.HostPort != 0 {
			at.Child("hostPort").invalidBy(p.HostPort, validation.IsValidPortNum(int(p.HostPort)))
		}
		validateValue(&p.Protocol, at.Child("protocol"), corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP)
	}
	validateHostPorts(ports, path)
}

// validateHostPortsAcross looks for a port of the node that two containers ask for. Init
// containers may share one: they do not run at the same time.
func validateHostPortsAcross(containers []appsv1beta1.SidecarContainer, path place) {
	taken := sets.New[string]()
	for i := range containers {
		var within []string // two of one container are reported by validatePorts
		for j := range containers[i].Ports {
			key := hostPortKey(&containers[i].Ports[j])
			if key != "" && taken.Has(key) {
				path.Index(i).Child("ports").Index(j).Child("hostPort").duplicate(key, "another container of this SidecarSet has this port of the node; choose another one")
			}
			within = append(within, key)
		}
		taken.Insert(within...)
	}
}

// validateHostPorts refuses a port of the node that the container has twice.
func validateHostPorts(ports []corev1.ContainerPort, path place) {
	taken := sets.New[string]()
	for i := range ports {
		if key := hostPortKey(&ports[i]); key != "" {
			validateUnique(key, taken, path.Index(i).Child("hostPort"), "another port of this container has this port of the node; remove one")
		}
	}
}

// hostPortKey is equal for ports that cannot exist on one node; "" for none.
func hostPortKey(p *corev1.ContainerPort) string {
	if p.HostPort == 0 {
		return ""
	}
	return fmt.Sprintf("%s/%s/%d", cmp.Or(p.Protocol, corev1.ProtocolTCP), p.HostIP, p.HostPort)
}

// validatePort checks a port that is given by number or name.
func validatePort(port intstr.IntOrString, path place) {
	if port.Type == intstr.String {
		path.invalidBy(port.StrVal, validation.IsValidPortName(port.StrVal))
		return
	}
	path.invalidBy(port.IntVal, validation.IsValidPortNum(int(port.IntVal)))
}
