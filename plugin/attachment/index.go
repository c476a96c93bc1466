package attachment

import (
	"os"

	"github.com/meshcni/meshcni/internal/filememo"
)

// Index reads the records of a [Store] again and again, as an agent does, at the cost of those that have changed. It is not
// safe for concurrent use.
type Index struct {
	store Store
	memo  filememo.Memo[Record]
}

// Index returns one that knows nothing yet.
func (s Store) Index() *Index { return &Index{store: s} }

// Records returns all records without their Rules and Unusable, in no order. The error says what cannot be read; the other
// records are there nevertheless. A directory that does not exist, as that of the zero Store, has none.
func (x *Index) Records() ([]Record, error) {
	if x.store.Dir == "" {
		return nil, nil
	}
	found, err := x.memo.Refresh(os.DirFS(x.store.Dir), []string{"."}, func(name string) (r Record, err error) {
		if !isRecord(name) {
			return r, nil
		}
		if r, err = x.store.read(name); os.IsNotExist(err) {
			return Record{}, nil
		}
		r.Rules, r.Unusable = Record{}.Rules, nil
		return r, err
	})
	var records []Record
	for _, r := range found {
		if r.Version != 0 {
			records = append(records, r)
		}
	}
	return records, wrap("read the records of attachments", err)
}
