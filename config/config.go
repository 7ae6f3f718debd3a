// Package config has the manifests of the operator. It embeds those that the leader compares with
// what is installed.
package config

import _ "embed"

// RequiredPolicy and RequiredBindings are the policy for required SidecarSets and its two bindings,
// in YAML.
var (
	//go:embed required/policy.yaml
	RequiredPolicy []byte
	//go:embed required/bindings.yaml
	RequiredBindings []byte
)
