package intake

import "time"

func init() { takeTimeout, storeTimeout = 3*time.Minute, 3*time.Minute } // the machine may be busy
