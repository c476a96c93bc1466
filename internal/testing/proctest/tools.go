package proctest

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

// Root is the root of the repository.
func Root() string {
	_, here, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(here), "..", "..", "..")
}

// Cache is a path in the directory where the scripts in .ci leave what they build: MESHCNI_CACHE, or .cache in [Root].
func Cache(elem ...string) string {
	top := os.Getenv("MESHCNI_CACHE")
	if top == "" {
		top = filepath.Join(Root(), ".cache")
	}
	return filepath.Join(append([]string{top}, elem...)...)
}

// Tool is the path of a program: from the cache, where .ci/tool and the like put it, or from the PATH.
func Tool(name string) (string, error) {
	if path, err := exec.LookPath(Cache("bin", name)); err == nil {
		return filepath.Abs(path)
	}
	return exec.LookPath(name)
}
