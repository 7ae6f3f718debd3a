package deploy

import "strings"

// Profile is a way to install the operator: the manifests, and the ServiceAccount of each role.
type Profile struct {
	overlay  string            // of test/overlays
	accounts map[string]string // by --role
}

// The profiles of config/.
var (
	// Default is config/default: every process has all rights of the operator.
	Default = Profile{"processes", map[string]string{"all": ServiceAccount, "webhook": ServiceAccount, "controller": ServiceAccount}}
	// Hardened is config/overlays/hardened: each role has its own rights. It has no role all.
	Hardened = Profile{"hardened", map[string]string{"webhook": "sidecarset-webhook", "controller": "sidecarset-controller"}}
	// CertManager is config/overlays/cert-manager: Default with other rights for certificates. It needs a network namespace.
	CertManager = Profile{"cert-manager", Default.accounts}
	// Static is config/overlays/static: one entry for all Pods. It needs a network namespace.
	Static = Profile{"static", Default.accounts}
)

// flags are additional flags that a process needs in this profile.
func (l Profile) flags() []string {
	if l.overlay == Static.overlay {
		return []string{"--pod-webhook=static"}
	}
	return nil
}

// account is the ServiceAccount of a process with these flags.
func (l Profile) account(args []string) string {
	role := "all"
	for _, arg := range args {
		if value, ok := strings.CutPrefix(arg, "--role="); ok {
			role = value
		}
	}
	return l.accounts[role]
}
