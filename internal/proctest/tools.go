package proctest

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

// Cache is a path where the scripts in .ci leave what they build and fetch: in
// MESHCNI_CACHE, else in .cache in the project's root.
func Cache(elem ...string) string {
	top := os.Getenv("MESHCNI_CACHE")
	if top == "" {
		_, here, _, _ := runtime.Caller(0)
		top = filepath.Join(filepath.Dir(here), "..", "..", ".cache")
	}
	return filepath.Join(append([]string{top}, elem...)...)
}

// Tool is the path of a program that .ci/tool and its like have put into the
// cache, else of one on the PATH. The error says when there is neither.
func Tool(name string) (string, error) {
	if path := Cache("bin", name); executable(path) {
		return filepath.Abs(path)
	}
	return exec.LookPath(name)
}

func executable(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0
}
