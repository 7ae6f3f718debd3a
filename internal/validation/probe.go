package validation

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validateProbes checks the probes and hooks of a container that stays.
func validateProbes(c *corev1.Container, path *field.Path) field.ErrorList {
	errs := validateProbe(c.LivenessProbe, path.Child("livenessProbe"))
	errs = append(errs, validateSuccessOnce(c.LivenessProbe, path.Child("livenessProbe"))...)
	errs = append(errs, validateProbe(c.ReadinessProbe, path.Child("readinessProbe"))...)
	if p := c.ReadinessProbe; p != nil && p.TerminationGracePeriodSeconds != nil {
		errs = append(errs, field.Invalid(path.Child("readinessProbe", "terminationGracePeriodSeconds"), *p.TerminationGracePeriodSeconds, "a readiness probe ends no container; remove it"))
	}
	errs = append(errs, validateProbe(c.StartupProbe, path.Child("startupProbe"))...)
	errs = append(errs, validateSuccessOnce(c.StartupProbe, path.Child("startupProbe"))...)
	if c.Lifecycle == nil {
		return errs
	}
	errs = append(errs, validateHook(c.Lifecycle.PostStart, path.Child("lifecycle", "postStart"))...)
	return append(errs, validateHook(c.Lifecycle.PreStop, path.Child("lifecycle", "preStop"))...)
}

func validateProbe(p *corev1.Probe, path *field.Path) field.ErrorList {
	if p == nil {
		return nil
	}
	errs := validateOneOf(path, alternatives(p.ProbeHandler)...)
	errs = append(errs, validateExec(p.Exec, path.Child("exec"))...)
	errs = append(errs, validateHTTPGet(p.HTTPGet, path.Child("httpGet"))...)
	errs = append(errs, validateTCPSocket(p.TCPSocket, path.Child("tcpSocket"))...)
	if p.GRPC != nil {
		errs = append(errs, validatePort(intstr.FromInt32(p.GRPC.Port), path.Child("grpc", "port"))...)
	}
	errs = append(errs, validateNotNegative(int64(p.InitialDelaySeconds), path.Child("initialDelaySeconds"))...)
	errs = append(errs, validateNotNegative(int64(p.TimeoutSeconds), path.Child("timeoutSeconds"))...)
	errs = append(errs, validateNotNegative(int64(p.PeriodSeconds), path.Child("periodSeconds"))...)
	errs = append(errs, validateNotNegative(int64(p.SuccessThreshold), path.Child("successThreshold"))...)
	errs = append(errs, validateNotNegative(int64(p.FailureThreshold), path.Child("failureThreshold"))...)
	if grace := p.TerminationGracePeriodSeconds; grace != nil && *grace <= 0 {
		errs = append(errs, field.Invalid(path.Child("terminationGracePeriodSeconds"), *grace, "must be greater than 0; correct or remove it"))
	}
	return errs
}

// validateSuccessOnce is about probes that count no successes; 0 is absent.
func validateSuccessOnce(p *corev1.Probe, path *field.Path) field.ErrorList {
	if p == nil || p.SuccessThreshold <= 1 {
		return nil
	}
	return field.ErrorList{field.Invalid(path.Child("successThreshold"), p.SuccessThreshold, "must be 1 for this kind of probe; correct or remove it")}
}

func validateHook(h *corev1.LifecycleHandler, path *field.Path) field.ErrorList {
	if h == nil {
		return nil
	}
	errs := validateOneOf(path, alternatives(h)...)
	errs = append(errs, validateExec(h.Exec, path.Child("exec"))...)
	errs = append(errs, validateHTTPGet(h.HTTPGet, path.Child("httpGet"))...)
	errs = append(errs, validateTCPSocket(h.TCPSocket, path.Child("tcpSocket"))...)
	if h.Sleep != nil && (h.Sleep.Seconds < 0 || h.Sleep.Seconds > gracePeriodSeconds) {
		errs = append(errs, field.Invalid(path.Child("sleep", "seconds"), h.Sleep.Seconds, "must be from 0 to 30, the time that a Pod has to end unless it says otherwise; correct it, or sleep by exec"))
	}
	return errs
}

// gracePeriodSeconds is the terminationGracePeriodSeconds of a Pod that does not
// have it. A longer sleep makes such a Pod invalid.
const gracePeriodSeconds = 30

func validateExec(exec *corev1.ExecAction, path *field.Path) field.ErrorList {
	if exec == nil || len(exec.Command) > 0 {
		return nil
	}
	return field.ErrorList{field.Required(path.Child("command"), "give the command to run in the sidecar")}
}

func validateHTTPGet(get *corev1.HTTPGetAction, path *field.Path) field.ErrorList {
	if get == nil {
		return nil
	}
	errs := validatePort(get.Port, path.Child("port"))
	errs = append(errs, validateValue(get.Scheme, path.Child("scheme"), corev1.URISchemeHTTP, corev1.URISchemeHTTPS)...)
	for i, header := range get.HTTPHeaders {
		errs = append(errs, invalid(path.Child("httpHeaders").Index(i).Child("name"), header.Name, validation.IsHTTPHeaderName(header.Name))...)
	}
	return errs
}

func validateTCPSocket(tcp *corev1.TCPSocketAction, path *field.Path) field.ErrorList {
	if tcp == nil {
		return nil
	}
	return validatePort(tcp.Port, path.Child("port"))
}
