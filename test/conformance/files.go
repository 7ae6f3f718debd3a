package conformance

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sidecarset/operator/certs"
)

// Volume is a directory in the form in which a kubelet mounts a Secret: links to the files of a
// directory that is replaced as a whole.
type Volume struct {
	Dir string

	versions int
}

// Write replaces what is mounted.
func (v *Volume) Write(t *testing.T, files map[string][]byte) {
	t.Helper()
	v.versions++
	version := fmt.Sprintf("..version-%d", v.versions)
	if err := os.Mkdir(filepath.Join(v.Dir, version), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(v.Dir, version, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(filepath.Join("..data", name), filepath.Join(v.Dir, name)); err != nil && !errors.Is(err, os.ErrExist) {
			t.Fatal(err)
		}
	}
	link := filepath.Join(v.Dir, "..data")
	if err := os.Symlink(version, link+"_tmp"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(link+"_tmp", link); err != nil {
		t.Fatal(err)
	}
}

// Files configures the mode in which the administrator mounts files: here, in dir.
func (m *Mode) Files(dir string) {
	m.Options.Mode, m.Options.Directory = certs.ModeFiles, dir
	m.Empty = "no such file or directory"
	volume := &Volume{Dir: dir}
	var ca certs.KeyPair
	m.Renew = func(t *testing.T) { volume.Write(t, PairFiles(t, ca, m.Options.Subject)) }
	m.Provide = func(t *testing.T) {
		var err error
		if ca, err = certs.IssueCA("mounted", time.Now(), 24*time.Hour); err != nil {
			t.Fatal(err)
		}
		m.Renew(t)
	}
	m.ChangeCA = m.Provide
}

// PairFiles returns a new key pair of the CA as the three files.
func PairFiles(t *testing.T, ca certs.KeyPair, subject certs.Subject) map[string][]byte {
	t.Helper()
	leaf, err := ca.IssueLeaf(subject)
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(leaf.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return map[string][]byte{
		"tls.crt": certs.EncodeBundle([]*x509.Certificate{leaf.Leaf}),
		"tls.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}),
		"ca.crt":  certs.EncodeBundle([]*x509.Certificate{ca.Certificate}),
	}
}
