package validation

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validateSecurityContext refuses what no Pod may have. Whether a namespace
// admits a privileged container is for the namespace to say.
func validateSecurityContext(sc *corev1.SecurityContext, path *field.Path) field.ErrorList {
	if sc == nil {
		return nil
	}
	errs := validatePrivileges(sc, path)
	if sc.RunAsUser != nil {
		errs = append(errs, invalid(path.Child("runAsUser"), *sc.RunAsUser, validation.IsValidUserID(*sc.RunAsUser))...)
	}
	if sc.RunAsGroup != nil {
		errs = append(errs, invalid(path.Child("runAsGroup"), *sc.RunAsGroup, validation.IsValidGroupID(*sc.RunAsGroup))...)
	}
	if sc.ProcMount != nil {
		errs = append(errs, validateValue(*sc.ProcMount, path.Child("procMount"), corev1.DefaultProcMount, corev1.UnmaskedProcMount)...)
	}
	errs = append(errs, validateWindowsOptions(sc.WindowsOptions, path.Child("windowsOptions"))...)
	if p := sc.SeccompProfile; p != nil {
		at := path.Child("seccompProfile")
		errs = append(errs, requireValue(p.Type, at.Child("type"), corev1.SeccompProfileTypeLocalhost, corev1.SeccompProfileTypeRuntimeDefault, corev1.SeccompProfileTypeUnconfined)...)
		errs = append(errs, validateLocalhostProfile(p.LocalhostProfile, p.Type == corev1.SeccompProfileTypeLocalhost, at.Child("localhostProfile"))...)
		if p.LocalhostProfile != nil {
			errs = append(errs, validateDescendingPath(*p.LocalhostProfile, at.Child("localhostProfile"))...)
		}
	}
	if p := sc.AppArmorProfile; p != nil {
		at := path.Child("appArmorProfile")
		errs = append(errs, requireValue(p.Type, at.Child("type"), corev1.AppArmorProfileTypeLocalhost, corev1.AppArmorProfileTypeRuntimeDefault, corev1.AppArmorProfileTypeUnconfined)...)
		errs = append(errs, validateLocalhostProfile(p.LocalhostProfile, p.Type == corev1.AppArmorProfileTypeLocalhost, at.Child("localhostProfile"))...)
		if name := p.LocalhostProfile; name != nil && (*name == "" || strings.TrimSpace(*name) != *name || len(*name) > maxProfileName) {
			errs = append(errs, field.Invalid(at.Child("localhostProfile"), *name, "must be the name of a profile of the node, without white space around it; correct it"))
		}
	}
	return errs
}

// maxProfileName is PATH_MAX less its terminating zero.
const maxProfileName = 4095

func validatePrivileges(sc *corev1.SecurityContext, path *field.Path) field.ErrorList {
	if sc.AllowPrivilegeEscalation == nil || *sc.AllowPrivilegeEscalation {
		return nil
	}
	var errs field.ErrorList
	at := path.Child("allowPrivilegeEscalation")
	if sc.Privileged != nil && *sc.Privileged {
		errs = append(errs, field.Invalid(at, false, "may not be false for a privileged container; remove one of them"))
	}
	if sc.Capabilities != nil && slices.Contains(sc.Capabilities.Add, "CAP_SYS_ADMIN") {
		errs = append(errs, field.Invalid(at, false, "may not be false with capability CAP_SYS_ADMIN; remove one of them"))
	}
	return errs
}

func validateLocalhostProfile(name *string, localhost bool, path *field.Path) field.ErrorList {
	switch {
	case localhost && name == nil:
		return field.ErrorList{field.Required(path, "type Localhost needs the name of a profile of the node; set it")}
	case !localhost && name != nil:
		return field.ErrorList{field.Invalid(path, *name, "is for type Localhost only; remove it")}
	}
	return nil
}
