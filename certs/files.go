package certs

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// directory is a directory of mounted files: tls.crt, tls.key and ca.crt. A replica reads them every Options.Poll and does not
// watch them: a kubelet takes about a minute to update a volume, and it replaces a link, which a file watch does not follow.
type directory string

func (d directory) String() string { return "directory " + string(d) }

// load reads the three files. A kubelet replaces all files of a volume at once, by pointing the link ..data to another directory,
// so load reads from where the link points now. If a program writes the files one by one, the check that they belong together fails
// until the last is written.
func (d directory) load(context.Context) (material, error) {
	dir := string(d)
	if data, err := filepath.EvalSymlinks(filepath.Join(dir, "..data")); err == nil {
		dir = data
	}
	var m material
	for name, content := range map[string]*[]byte{signingCertKey: &m.cert, signingKeyKey: &m.key, bundleKey: &m.ca} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return material{}, fmt.Errorf("reading the serving certificate: %w", err)
		}
		*content = data
	}
	return m, nil
}
