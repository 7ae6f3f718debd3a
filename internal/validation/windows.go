package validation

import (
	"fmt"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Bounds and forms of Windows, as the API server has them.
const (
	maxCredentialSpec    = 64 << 10
	maxWindowsUserDomain = 255
	maxWindowsUser       = 104
)

var (
	controlCharacters = regexp.MustCompile(`[[:cntrl:]]`)
	netBIOSName       = regexp.MustCompile(`^[^\\/:\*\?"<>|\.][^\\/:\*\?"<>|]{0,14}$`)
	windowsDNSDomain  = regexp.MustCompile(`^[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?(?:\.[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?)*$`)
	notInWindowsUser  = regexp.MustCompile(`["/\\:;|=,\+\*\?<>@\[\]]`)
	onlyDotsAndSpaces = regexp.MustCompile(`^[\. ]+$`)
)

func validateWindowsOptions(w *corev1.WindowsSecurityContextOptions, path place) {
	if w.GMSACredentialSpecName != nil {
		path.Child("gmsaCredentialSpecName").invalidBy(*w.GMSACredentialSpecName, validation.IsDNS1123Subdomain(*w.GMSACredentialSpecName))
	}
	if spec := w.GMSACredentialSpec; spec != nil && (*spec == "" || len(*spec) > maxCredentialSpec) {
		path.Child("gmsaCredentialSpec").invalid(field.OmitValueType{}, "must have 1 to 65536 bytes; correct or remove it")
	}
	if w.RunAsUserName != nil {
		validateWindowsUser(*w.RunAsUserName, path.Child("runAsUserName"))
	}
}

// validateWindowsUser checks a name such as DOMAIN\user.
func validateWindowsUser(name string, path place) {
	domain, user, hasDomain := strings.Cut(name, `\`)
	if !hasDomain {
		domain, user = "", name
	}
	var problem string
	switch {
	case name == "":
		path.invalid(name, `must not be empty; name a user such as ContainerUser, or remove it`)
		return
	case controlCharacters.MatchString(name):
		problem = "must not contain control characters"
	case len(domain) > maxWindowsUserDomain, hasDomain && !netBIOSName.MatchString(domain) && !windowsDNSDomain.MatchString(domain):
		problem = `must have a NetBIOS or DNS name of a domain in front of the \`
	case user == "" || len(user) > maxWindowsUser:
		problem = fmt.Sprintf("must have a user of 1 to %d characters", maxWindowsUser)
	case onlyDotsAndSpaces.MatchString(user):
		problem = "must have a user of more than periods and spaces"
	case notInWindowsUser.MatchString(user):
		problem = `must have a user without any of "/\:;|=,+*?<>@[]`
	default:
		return
	}
	path.invalid(name, problem+"; correct it")
}
