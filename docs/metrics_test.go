package docs

import "regexp"

var metric = regexp.MustCompile(`"(sidecarset_[a-z_]+)"`)
