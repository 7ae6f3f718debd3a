package validation

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// validateSecurityContext refuses what no Pod may have. It accepts a privileged container:
// each namespace decides whether it admits one.
func validateSecurityContext(sc *corev1.SecurityContext, path place) {
	validatePrivileges(sc, path)
	if sc.RunAsUser != nil {
		path.Child("runAsUser").invalidBy(*sc.RunAsUser, validation.IsValidUserID(*sc.RunAsUser))
	}
	if sc.RunAsGroup != nil {
		path.Child("runAsGroup").invalidBy(*sc.RunAsGroup, validation.IsValidGroupID(*sc.RunAsGroup))
	}
	validateValue(sc.ProcMount, path.Child("procMount"), corev1.DefaultProcMount, corev1.UnmaskedProcMount)
	ifSet(sc.WindowsOptions, path.Child("windowsOptions"), validateWindowsOptions)
	if p := sc.SeccompProfile; p != nil {
		at := path.Child("seccompProfile")
		validateProfile(p.Type, p.LocalhostProfile, at)
		if p.LocalhostProfile != nil {
			validateDescendingPath(*p.LocalhostProfile, at.Child("localhostProfile"))
		}
	}
	if p := sc.AppArmorProfile; p != nil {
		at := path.Child("appArmorProfile")
		validateProfile(p.Type, p.LocalhostProfile, at)
		if name := p.LocalhostProfile; name != nil && (*name == "" || strings.TrimSpace(*name) != *name || len(*name) > maxProfileName) {
			at.Child("localhostProfile").invalid(*name, "must be the name of a profile of the node, without white space around it; correct it")
		}
	}
}

// maxProfileName is PATH_MAX less its terminating zero.
const maxProfileName = 4095

func validatePrivileges(sc *corev1.SecurityContext, path place) {
	if sc.AllowPrivilegeEscalation == nil || *sc.AllowPrivilegeEscalation {
		return
	}
	at := path.Child("allowPrivilegeEscalation")
	if sc.Privileged != nil && *sc.Privileged {
		at.invalid(false, "may not be false for a privileged container; remove one of them")
	}
	if sc.Capabilities != nil && slices.Contains(sc.Capabilities.Add, "CAP_SYS_ADMIN") {
		at.invalid(false, "may not be false with capability CAP_SYS_ADMIN; remove one of them")
	}
}

// validateProfile checks what the profiles of seccomp and AppArmor have in common.
func validateProfile[T ~string](kind T, name *string, path place) {
	requireValue(kind, path.Child("type"), "Localhost", "RuntimeDefault", "Unconfined")
	switch localhost := kind == "Localhost"; {
	case localhost && name == nil:
		path.Child("localhostProfile").required("type Localhost needs the name of a profile of the node; set it")
	case !localhost && name != nil:
		path.Child("localhostProfile").invalid(*name, "is for type Localhost only; remove it")
	}
}
