package validation

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
)

// validateProbes checks the probes and hooks of a container that stays.
func validateProbes(c *corev1.Container, path place) {
	ifSet(c.LivenessProbe, path.Child("livenessProbe"), validateEndingProbe)
	ifSet(c.ReadinessProbe, path.Child("readinessProbe"), validateProbe)
	if p := c.ReadinessProbe; p != nil && p.TerminationGracePeriodSeconds != nil {
		path.Child("readinessProbe", "terminationGracePeriodSeconds").invalid(*p.TerminationGracePeriodSeconds, "a readiness probe ends no container; remove it")
	}
	ifSet(c.StartupProbe, path.Child("startupProbe"), validateEndingProbe)
	if c.Lifecycle == nil {
		return
	}
	ifSet(c.Lifecycle.PostStart, path.Child("lifecycle", "postStart"), validateHook)
	ifSet(c.Lifecycle.PreStop, path.Child("lifecycle", "preStop"), validateHook)
}

func validateProbe(p *corev1.Probe, path place) {
	validateOneOf(path, alternatives(p.ProbeHandler)...)
	validateAction(p.Exec, p.HTTPGet, p.TCPSocket, path)
	if p.GRPC != nil {
		validatePort(intstr.FromInt32(p.GRPC.Port), path.Child("grpc", "port"))
	}
	validateNotNegative(int64(p.InitialDelaySeconds), path.Child("initialDelaySeconds"))
	validateNotNegative(int64(p.TimeoutSeconds), path.Child("timeoutSeconds"))
	validateNotNegative(int64(p.PeriodSeconds), path.Child("periodSeconds"))
	validateNotNegative(int64(p.SuccessThreshold), path.Child("successThreshold"))
	validateNotNegative(int64(p.FailureThreshold), path.Child("failureThreshold"))
	if grace := p.TerminationGracePeriodSeconds; grace != nil && *grace <= 0 {
		path.Child("terminationGracePeriodSeconds").invalid(*grace, "must be greater than 0; correct or remove it")
	}
}

// validateEndingProbe checks a probe whose failure ends the container. One success is enough
// for it; 0 is absent.
func validateEndingProbe(p *corev1.Probe, path place) {
	validateProbe(p, path)
	if p.SuccessThreshold > 1 {
		path.Child("successThreshold").invalid(p.SuccessThreshold, "must be 1 for this kind of probe; correct or remove it")
	}
}

func validateHook(h *corev1.LifecycleHandler, path place) {
	validateOneOf(path, alternatives(h)...)
	validateAction(h.Exec, h.HTTPGet, h.TCPSocket, path)
	if h.Sleep != nil {
		validateNotNegative(h.Sleep.Seconds, path.Child("sleep", "seconds"))
	}
}

// validateAction checks the actions that both probes and hooks may have.
func validateAction(exec *corev1.ExecAction, get *corev1.HTTPGetAction, tcp *corev1.TCPSocketAction, path place) {
	if exec != nil && len(exec.Command) == 0 {
		path.Child("exec", "command").required("give the command to run in the sidecar")
	}
	ifSet(get, path.Child("httpGet"), validateHTTPGet)
	if tcp != nil {
		validatePort(tcp.Port, path.Child("tcpSocket", "port"))
	}
}

func validateHTTPGet(get *corev1.HTTPGetAction, path place) {
	validatePort(get.Port, path.Child("port"))
	validateValue(&get.Scheme, path.Child("scheme"), corev1.URISchemeHTTP, corev1.URISchemeHTTPS)
	for i, header := range get.HTTPHeaders {
		path.Child("httpHeaders").Index(i).Child("name").invalidBy(header.Name, validation.IsHTTPHeaderName(header.Name))
	}
}
