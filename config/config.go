// Package config has the manifests of the operator. It embeds those that the plugin compares an
// installation with.
package config

import _ "embed"

// Roles are the Roles and ClusterRoles of the operator, in YAML. CertificateRoles are those that
// only self-managed certificates (--cert-mode=self) need, with their bindings.
var (
	//go:embed rbac/role.yaml
	Roles []byte
	//go:embed rbac/certificates_role.yaml
	CertificateRoles []byte
)
