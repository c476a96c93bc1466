package dist

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/meshcni/meshcni/release/internal/files"
	"github.com/meshcni/meshcni/release/internal/programs"
)

// Checksums is the name of the file that lists all others, as sha256sum does.
const Checksums = "checksums.txt"

// writeChecksums lists what this release wrote.
func (r *Release) writeChecksums() error {
	var b bytes.Buffer
	slices.Sort(r.written)
	for _, name := range r.written {
		sum, err := files.Digest(filepath.Join(r.out, name))
		if err != nil {
			return fmt.Errorf("checksums: %w", err)
		}
		fmt.Fprintf(&b, "%s  %s\n", sum, name)
	}
	return r.write(Checksums, b.Bytes(), fmt.Sprintf("of %d files", len(r.written)))
}

// readChecksums returns the sums that a directory's list promises, by name.
func readChecksums(dir string) (map[string]string, error) {
	f, err := os.Open(filepath.Join(dir, Checksums))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	sums := map[string]string{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		sum, name, ok := strings.Cut(lines.Text(), "  ")
		// A name with a directory could be any file of the machine.
		if !ok || len(sum) != 2*sha256.Size || name != filepath.Base(name) || sums[name] != "" {
			return nil, fmt.Errorf("%s: line %q is not a checksum and the name of one more file", Checksums, lines.Text())
		}
		sums[name] = sum
	}
	return sums, lines.Err()
}

// Check holds the files of a directory against its checksums, and returns them: each is there and as listed, and no other
// file is.
func Check(dir string) (map[string]string, error) {
	sums, err := readChecksums(dir)
	if err != nil {
		return nil, fmt.Errorf("check %s: %w", dir, err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("check %s: %w", dir, err)
	}
	var wrong []error
	seen := map[string]bool{}
	for _, e := range entries {
		name := e.Name()
		seen[name] = true
		if name == Checksums {
			continue
		}
		want, listed := sums[name]
		if !listed || !e.Type().IsRegular() {
			wrong = append(wrong, fmt.Errorf("%s is not a file that %s lists", name, Checksums))
			continue
		}
		switch got, err := files.Digest(filepath.Join(dir, name)); {
		case err != nil:
			wrong = append(wrong, err)
		case got != want:
			wrong = append(wrong, fmt.Errorf("%s is not what was released: its SHA-256 is %s, not %s", name, got, want))
		}
	}
	for name := range sums {
		if !seen[name] {
			wrong = append(wrong, fmt.Errorf("%s is missing", name))
		}
	}
	if err := joined("check "+dir, wrong); err != nil {
		return nil, err
	}
	return sums, nil
}

// clear removes from the output directory what an earlier release wrote there: the files that its list names, and those
// named like a release's. So nothing of another version is left beside this one's.
func (r *Release) clear() (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("clear %s: %w", r.out, err)
		}
	}()
	sums, err := readChecksums(r.out)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	entries, err := os.ReadDir(r.out)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := e.Name()
		ours := sums[name] != "" || name == Checksums || strings.HasPrefix(name, "meshcni_") || strings.HasPrefix(name, "meshcni-") ||
			strings.HasPrefix(name, programs.Plugin+"_") || name == Krew
		if !ours || !e.Type().IsRegular() {
			continue
		}
		if err := os.Remove(filepath.Join(r.out, name)); err != nil {
			return err
		}
	}
	return nil
}
